# SPDX-License-Identifier: Apache-2.0
"""The prose check of the lint stage, .ci/prose.py, on small texts."""

from __future__ import annotations

from pathlib import Path

import pytest

prose = pytest.importorskip("prose", reason="source distributions have no .ci/")

EXAMPLES = {
    "bare-who": ("Who holds it waits.", "Who is this page for?"),
    "a-for-per": ("It keeps one copy a rank.", "It keeps one copy per rank."),
    "is-no": ("A child process is no rank.", "There is no rank that waits."),
    "also-if": ("It returns also if a rank fails.", "It returns even if a rank fails."),
    "but-for": ("All ranks, but for the first, wait.", "It is fast, but it needs memory."),
    "goes-on": ("The training goes on.", "The loss goes on to the next layer."),
    "archaic": ("Meanwhile the kernels run, and meanwhile ends.", "The kernels run until then."),
    "personified": ("A rank hears of the failure.", "A rank is notified of the failure."),
    "stands-lies": ("The value stands in a file.", "DP stands for data parallelism."),
    "behind": ("The pass behind the fusion.", "Run it behind a proxy."),
    "what-clause": ("What it costs is small.", "What is a collective?"),
    "bare-pronoun": ("Nobody waits, and nobody else has it.", "No rank waits."),
    "so-many": ("A row of so many elements.", "There are so many that it fails."),
    "alone": ("The values of this rank alone.", "Only the values of this rank."),
    "there": ("The data are there.", "Are there any data? There are."),
    "alike": ("All ranks decide alike.", "All ranks decide in the same way."),
    "metaphor": ("It follows the house rules.", "It follows the rules."),
    "own-term": ("It multiplies two-byte floats.", "It multiplies 16-bit floats."),
    "docstring-start": ('"""Whether it is open."""', '"""Return True if it is open."""'),
}
"""A hit and a text without a hit, by the name of the pattern."""


def names(text: str, path: str = "page.md") -> list[str]:
    """Return the names of the patterns that a text hits."""
    return [message.split(":")[0] for _, message in prose.hits(path, text)]


def test_each_pattern_has_an_example() -> None:
    assert {name for name, _, _ in prose.PATTERNS} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_pattern_finds_the_old_style_only(name: str) -> None:
    old, new = EXAMPLES[name]
    path = "module.py" if name == "docstring-start" else "page.md"
    assert set(names(old, path)) == {name}
    assert names(new, path) == []


@pytest.mark.parametrize(
    "text",
    [
        "```python\ntold = nobody\n```",
        "~~~\nnobody\n~~~",
        "The flag `told` and ``nobody else`` are names.",
        "| `told` | a flag |\n| --- | --- |\n| x | `all else` |",
        "The event is \"told\" or 'nobody'.",
        "A [link](nobody.md) to https://example.org/behind and a <a name='told'> tag.",
    ],
)
def test_code_is_not_prose(text: str) -> None:
    assert names(text) == []


def test_a_message_names_the_line_and_the_words_to_write() -> None:
    text = "# Title\n\nThe first line.\nA loss that is\nnone is skipped.\n\n- It goes\n  on.\n"
    assert prose.hits("page.md", text) == [
        (4, 'is-no: "is none"; write: is not one, does not exist'),
        (7, 'goes-on: "goes on"; write: continue, resume'),
    ]


def test_a_table_is_read_by_cells() -> None:
    assert names("| event | effect |\n| --- | --- |\n| a rank dies | Who waits is notified |") == [
        "bare-who"
    ]


def test_strings_of_programs_are_prose() -> None:
    python = (
        'def f(x):\n    """Return x."""\n    raise ValueError(f"f: {told}: the group "\n'
        '        "goes on")\n\nparser.add_argument("-n", help="what is told here")\n'
    )
    assert names(python, "module.py") == ["goes-on", "personified"]
    assert names('fail("rank " + n +\n     " is no rank of "\n     "this group");', "a.cpp") == [
        "is-no"
    ]
    assert names('x = {"told": "nobody"}', "module.py") == []


def test_the_first_line_of_a_docstring_is_a_sentence() -> None:
    text = 'class A:\n    """What a group has.\n\n    As it is.\n    """\n    X = "Of no"\n'
    assert names(text, "module.py") == ["docstring-start", "what-clause"]


def test_comments_are_prose() -> None:
    python = "# Nobody\n# goes\n# on.\nx = 1  # told\n" + 'y = "# told"\n'
    assert prose.hits("module.py", python) == [
        (1, 'bare-pronoun: "Nobody"; write: no rank, another user'),
        (2, 'goes-on: "goes on"; write: continue, resume'),
        (4, 'personified: "told"; write: report, return, be notified'),
    ]
    assert names("int x;  // It goes on.\n// http://behind.org\n", "a.hpp") == ["goes-on"]
    assert names("#!/bin/sh\n# It goes on.\n", "a.sh") == ["goes-on"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", "    def _told(x):\n"),
        ("a.py", "class given(Base):\n"),
        ("a.pyx", "cdef inline object held(int x):\n"),
        ("a.hpp", "  std::vector<int> taken() const noexcept {\n"),
        (
            "a.cpp",
            "bool Group::has_left(int r) const {\n  return late_(r);\n}\nint late(int x) {\n",
        ),
    ],
)
def test_a_participle_is_not_a_name(path: str, source: str) -> None:
    assert names(source, path) == ["name"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a.py", "def is_told(x):\n    told = x\n    return taken(told)\n"),
        ("a.cpp", "  if (x) return held(y);\n  held(x);\n"),
    ],
)
def test_only_definitions_have_names(path: str, source: str) -> None:
    assert names(source, path) == []


def test_an_allow_list_is_a_ratchet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "ALLOW_LIST", tmp_path / "prose.txt")
    old, new = tmp_path / "old.md", tmp_path / "new.md"
    old.write_text("Nobody waits.\n\nNobody waits.")
    new.write_text("No rank waits.")

    assert prose.check_files(["old.md", "new.md"], rewrite=True) == 0
    assert (tmp_path / "prose.txt").read_text() == "old.md 2\n"
    assert prose.check_files(["old.md", "new.md"], rewrite=False) == 0
    assert capsys.readouterr().out == ""

    new.write_text("Nobody waits.")
    assert prose.check_files(["old.md", "new.md"], rewrite=False) == 1
    assert "new.md: expected at most 0 hits; got 1" in capsys.readouterr().out

    old.write_text("Nobody waits.")
    assert prose.check_files(["old.md"], rewrite=False) == 0
    assert "old.md: 1 hits, 2 allowed; run" in capsys.readouterr().out

    old.write_text("Nobody waits. " * 3)
    assert prose.check_files(["old.md"], rewrite=False) == 1
    assert 'old.md:1: bare-pronoun: "Nobody"; write:' in capsys.readouterr().out


@pytest.mark.parametrize(
    "subject",
    [
        "comm: fix review findings in failure notification",
        "ir, ops: pass the axis to all reductions",
        ".ci/run: speed up the stage of sanitizers",
        "docs: embed the figures",
    ],
)
def test_a_subject_is_an_area_and_a_command(subject: str) -> None:
    assert prose.subject_faults(subject) == []


@pytest.mark.parametrize(
    "subject",
    [
        "fix the build",
        "comm: fix",
        "comm: Fix the build",
        "comm: fix the build.",
        "comm: fixes the build",
        "comm: fixed the build",
        "comm: fixing the build",
        "comm: the build is fixed",
        "comm: what a review found is mended",
        "comm: fix the build on the machines that have a compiler of another vendor",
    ],
)
def test_a_subject_that_is_not(subject: str) -> None:
    assert prose.subject_faults(subject) != []
