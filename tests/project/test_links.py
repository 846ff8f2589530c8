# SPDX-License-Identifier: Apache-2.0
"""Tests of .ci/links.py, the link check of the lint stage, on small texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ngd._util.links import SITE

links = pytest.importorskip("links", reason="source distributions have no .ci/")

ROOT = Path(__file__).parents[2]

RIGHT = {
    "a file": "[errors](docs/errors.md)",
    "a folder": "[examples](examples)",
    "an anchor of the file": "# A title: part 2\n[above](#a-title-part-2)",
    "the second of two equal headings": "# Use\n# Use\n[use](#use-1)",
    "an anchor of another file": "[install](README.md#install)",
    "a reference": "[errors][e] and [e][]\n\n[e]: docs/errors.md",
    "a page of the site": f"<{SITE}errors/>",
    "the start page of the site": SITE,
    "an address": "See https://numpy.org/doc/stable/, or [MPI](https://www.open-mpi.org).",
    "an address of this host": "http://127.0.0.1:9400/metrics",
    "a code block": "```\n[a](missing.md)\n```",
    "a code span": "`[a](missing.md)`",
}
WRONG = {
    "a missing file": "\n[a](docs/missing.md)",
    "a file from the root of the disk": "\n[a](/docs/errors.md)",
    "a missing anchor": "# Use\n[use](#uses)",
    "a missing anchor of another file": "\n[a](README.md#missing)",
    "an undefined reference": "\n[errors][e]",
    "a missing file of a reference": "\n[e]: docs/missing.md",
    "a missing page of the site": f"\n[a]({SITE}missing/)",
    "a missing anchor of the site": f"\n{SITE}errors/#missing",
    "an address without a host": "\n[a](https:docs/errors.md)",
    "an unknown protocol": "\n[a](htps://numpy.org)",
    "an image": "\n![chart](docs/images/missing.svg)",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_link_has_no_fault(name: str) -> None:
    assert links.faults("NEW.md", RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_dead_link_is_reported_with_its_line(name: str) -> None:
    ((line, message),) = links.faults("NEW.md", WRONG[name])
    assert line == 2
    assert message.startswith("expected ")
    assert "; got " in message


def test_a_page_of_the_site_does_not_link_to_files_outside_of_docs() -> None:
    ((_, message),) = links.faults("docs/new.md", "[b](../benchmarks/README.md)")
    assert "which the site contains" in message


@pytest.mark.parametrize("folder", ["docs/new.md", "NEW.md"])
def test_an_anchor_has_the_form_of_the_site_that_shows_it(folder: str) -> None:
    """MkDocs replaces several hyphens by one. A repository keeps all of them."""
    anchor = "a-b" if folder.startswith("docs/") else "a--b"
    assert links.faults(folder, f"# A / B\n[above](#{anchor})") == []
    assert len(links.faults(folder, "# A / B\n[above](#a---b)")) == 1


def test_a_source_file_names_pages_that_exist() -> None:
    source = '"docs/errors.md"\n"docs/no_page.md"\n'
    assert [line for line, _ in links.faults("new.py", source)] == [2]


def test_an_entry_of_the_reference_has_an_anchor_per_member() -> None:
    text = "[a](api/collectives.md#ngd.Group.split)\n[b](api/collectives.md#ngd.Grou)"
    assert [line for line, _ in links.faults("docs/new.md", text)] == [2]


def test_the_checker_the_package_and_the_site_have_one_address() -> None:
    assert links.SITE == SITE
    assert f"site_url: {SITE}\n" in (ROOT / "mkdocs.yml").read_text()
