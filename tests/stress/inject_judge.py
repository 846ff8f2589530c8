# SPDX-License-Identifier: Apache-2.0
"""The findings of a run of inject.py: what its ranks reported, and may not have."""

from __future__ import annotations

import re
from typing import Any

from tests.stress.inject_hook import LOST, E, Fault, Hook

HARMLESS = {E.EINTR, E.EAGAIN, E.ECONNABORTED, LOST}
"""The faults that no rank may notice, except that EAGAIN of pthread_create is an error."""

MAY_LEAVE = {
    # It is unknown if the descriptor is still ngd's; another one must not be closed.
    "src/cpp/comm/shm/system.cpp fstat",
}
"""Sites whose failure may leave something open."""

ALLOWED = ("MemoryError", "OSError", "InitError", "RankLostError", "RemoteRankError")
NOTIFIED = ("RemoteRankError", "RankLostError", "InitError", "GroupClosedError")


def reports_too_little_memory(message: str) -> bool:
    """Return if an error says that one of the ranks has too little memory."""
    return "has no memory" in message or "expected memory for" in message


def place_of(site: str) -> str:
    """Return a site without its line number, which changes often."""
    return re.sub(r":\d+", "", site)


def waits_with_reason(error: dict[str, Any], report: dict[str, Any], failed: list[Any]) -> bool:
    """Return if a rank waits in init() for the other rank with good reason.

    The other rank had left init() and failed later. This rank got that error in init().
    """
    heard = any(e["step"] == "init" and e["kind"] == "RemoteRankError" for e in report["errors"])
    later = all(e["step"] != "init" for e in failed)
    return error["step"] == "init" and heard and later


def waited_alone(error: dict[str, Any], fault: Fault, reports: dict[int, Any]) -> bool:
    """Return if a rank failed in init(), and waited when the other rank had left init()."""
    others = [e for rank, r in reports.items() if rank != fault.rank for e in r["errors"]]
    through = any(e["step"] != "init" and e["kind"] == "RemoteRankError" for e in others)
    return (
        through and error["step"].startswith("init") and error["kind"] == "CollectiveTimeoutError"
    )


def judge(hook: Hook, fault: Fault, reports: dict[int, Any], quiet: Any) -> list[str]:
    """Return the findings of a run."""
    from tests.stress.inject_scenarios import SCENARIOS

    findings: list[str] = []
    again, site = SCENARIOS[fault.scenario].again, place_of(hook.sites.names[fault.site])
    for rank, report in reports.items():
        if isinstance(report, str):
            findings.append(f"rank {rank} {report}")
    if findings:
        return findings
    own_report = reports[fault.rank]
    failed = [
        e for e in own_report["errors"] if not e["expected"] and not waited_alone(e, fault, reports)
    ]
    is_harmless = fault.kind in HARMLESS and fault.function != "pthread_create"
    for error in failed:
        has_message = error["message"].strip() != ""
        if not set(error["kinds"]) & set(ALLOWED) or not has_message or is_harmless:
            findings.append(f"{error['step']}: {error['kind']}: {error['message']!r}")
    failed_again = any(error["step"].endswith(", again") for error in failed)
    if failed_again:
        findings.append("called again it did not work")
    for rank, report in reports.items():
        if rank != fault.rank:
            for error in report["errors"]:
                if error["expected"]:
                    continue
                is_notified = bool(set(error["kinds"]) & set(NOTIFIED)) and bool(
                    failed or error["step"] == "init"
                )
                is_notified |= reports_too_little_memory(error["message"])
                is_notified |= not again and error["kind"] == "CollectiveTimeoutError"
                is_notified |= waits_with_reason(error, report, failed)
                if not is_notified or is_harmless:
                    findings.append(
                        f"rank {rank}: {error['step']}: {error['kind']}: {error['message']!r}"
                    )
        if report["leaks"] and site not in MAY_LEAVE:
            findings.append(
                f"rank {rank} still holds {report['leaks'][1]}, not {report['leaks'][0]}"
            )
        for error in report.get("again", []):
            if not set(error["kinds"]) & {"InitError", "RankLostError"}:
                findings.append(f"rank {rank}, afterwards: {error['kind']}: {error['message']!r}")
        for where, count in report["blocks"].items():
            may_stay = where.startswith("call_site.pxi")  # the texts of call sites
            if count > quiet[rank].get(where, 0) + 1 and not may_stay:
                findings.append(f"rank {rank} has left {count} blocks of {where}")
    return findings
