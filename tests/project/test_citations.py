"""What docstrings and tests cite (`semantics.md §3`, `design §1.4`, `filelog.md §4.6`, B16) leads somewhere in docs/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CASES = [f"B{number:02}" for number in range(1, 25)]

_SECTION = r"§?\d+(?:\.\d+)*"
_CITATION = re.compile(
    rf"\b(?P<page>semantics|design|filelog)(?:\.md)? (?P<sections>§\d+(?:\.\d+)*(?:(?:, (?=§)|[–-]){_SECTION})*)", re.I
)
_CASE = re.compile(r"\bB[0-2]\d\b")
_TEST = re.compile(r"(?P<file>tests/[\w/]+\.py)::(?P<name>\w+)")


def sources(*folders: str) -> Iterator[tuple[str, int, str]]:
    """The lines of all Python files of these folders, with their place."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
                    yield path.relative_to(ROOT).as_posix(), number, line


def cited(line: str) -> Iterator[tuple[str, str]]:
    """Each page and section that a line cites; of a range both ends and what lies between."""
    for found in _CITATION.finditer(line):
        page = found["page"].lower()
        for part in found["sections"].split(", "):
            first, *last = (section.removeprefix("§") for section in re.split("[–-]", part))
            yield page, first
            if last and "." not in first and "." not in last[0]:
                yield from ((page, str(number)) for number in range(int(first) + 1, int(last[0]) + 1))
            elif last:
                yield page, last[0]


def sections() -> dict[str, set[str]]:
    """The sections of each page, as they are cited."""
    semantics = (DOCS / "semantics.md").read_text(encoding="utf-8")
    design = (DOCS / "design" / "README.md").read_text(encoding="utf-8")
    filelog = (DOCS / "file-log-format.md").read_text(encoding="utf-8")
    rules = re.findall(r"^(\d+)\. ", design, re.MULTILINE)
    return {
        "semantics": set(re.findall(r"^## (\d+)\. \S", semantics, re.MULTILINE)),
        "design": {*re.findall(r"^### §(\d+) \S", design, re.MULTILINE), *(f"1.{rule}" for rule in rules)},
        "filelog": set(re.findall(r"^\| `filelog\.md §([\d.]+)` \|", filelog, re.MULTILINE)),
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('"""Rules (semantics.md §2, §3)."""', [("semantics", "2"), ("semantics", "3")]),
        (
            "design §3, semantics.md §3–§5",
            [("design", "3"), ("semantics", "3"), ("semantics", "4"), ("semantics", "5")],
        ),
        ("(design §1.1, §1.5).", [("design", "1.1"), ("design", "1.5")]),
        ("Semantics §2, table: {1} {3}; filelog.md §3–4.", [("semantics", "2"), ("filelog", "3"), ("filelog", "4")]),
        ("semantics.md §3, rule 4; RFC 9562 §5.7", [("semantics", "3")]),
    ],
)
def test_citations_are_read_as_people_read_them(line: str, found: list[tuple[str, str]]) -> None:
    assert list(cited(line)) == found


def test_every_cited_section_is_there() -> None:
    there = sections()
    lost = [
        f"{name}:{number}: {page} §{section}"
        for name, number, line in sources("gasoline_es", "projections", "tests")
        for page, section in cited(line)
        if section not in there[page]
    ]
    assert lost == []


def test_the_pages_have_all_their_sections_once() -> None:
    there = sections()
    assert there["semantics"] == {str(number) for number in range(1, 13)}
    assert there["design"] == {*(str(number) for number in range(1, 11)), *(f"1.{rule}" for rule in range(1, 6))}
    assert {section.split(".")[0] for section in there["filelog"]} == {str(number) for number in range(1, 6)}


def test_every_link_to_a_section_of_the_pages_leads_to_a_heading() -> None:
    lost: list[str] = []
    for page in (DOCS / "semantics.md", DOCS / "file-log-format.md", *sorted((DOCS / "design").glob("*.md"))):
        for link in re.finditer(r"\]\((?P<path>[^)#\s:]*)#(?P<anchor>[^)\s]+)\)", page.read_text(encoding="utf-8")):
            target = page.parent / link["path"] if link["path"] else page
            if link["anchor"] not in anchors(target):
                lost.append(f"{page.relative_to(ROOT)}: {link[0]}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_required_case_names_tests_that_exist_or_says_what_is_missing() -> None:
    rows = dict(re.findall(r"^\| (B\d\d) \|(.+)\|$", (DOCS / "design" / "cases.md").read_text(encoding="utf-8"), re.M))
    assert list(rows) == CASES
    lost: list[str] = []
    for case, row in rows.items():
        tests = list(_TEST.finditer(row))
        if not tests and "later:" not in row:
            lost.append(f"{case} names no test and nothing that is missing")
        lost += [f"{case}: {test[0]}" for test in tests if not is_there(test)]
    assert lost == []


def units(section: str) -> list[str]:
    """The paragraphs, those of lists too, and the rows of tables, each in one line."""
    found: list[str] = []
    inside = False
    for line in section.split("\n"):
        if line.startswith(("- ", "|")) or (line and not inside):
            found.append(line)
        elif line:
            found[-1] += f" {line.strip()}"
        inside = bool(line)
    headings = {place - 1 for place, line in enumerate(found) if place and line.startswith("|---")}
    return [line for place, line in enumerate(found) if place not in headings and not line.startswith("|---")]


def parts(page: str) -> dict[str, str]:
    """The text of each numbered section."""
    found = re.split(r"^## (\d+)\. .*$", page, flags=re.M)
    return dict(zip(found[1::2], found[2::2], strict=True))


PROVED = ["5", "6", "7", "8", "9", "11"]


@pytest.mark.parametrize("number", PROVED)
def test_every_promise_of_a_section_names_tests_that_exist(number: str) -> None:
    """docs/design/semantics-proofs.md, held against docs/semantics.md."""
    promises = units(parts((DOCS / "semantics.md").read_text(encoding="utf-8"))[number])
    proofs = units(parts((DOCS / "design" / "semantics-proofs.md").read_text(encoding="utf-8"))[number])
    assert len(promises) > 5
    lost: list[str] = []
    proved: set[str] = set()
    for row in proofs:
        quote, _, tests = row.removeprefix("| ").rpartition(" | ")
        where = [one for one in promises if quote in one]
        proved.update(where)
        if not where:
            lost.append(f"semantics.md §{number} does not say: {quote}")
        named = list(_TEST.finditer(tests))
        if not named:
            lost.append(f"{quote}: no test")
        lost += [f"{quote}: {test[0]}" for test in named if not is_there(test)]
    lost += [f"not proved: {one}" for one in promises if one not in proved]
    assert lost == []


def is_there(test: re.Match[str]) -> bool:
    path = ROOT / test["file"]
    return path.is_file() and f"def {test['name']}(" in path.read_text(encoding="utf-8")


def test_every_cited_case_is_a_required_one() -> None:
    lost = [
        f"{name}:{number}: {case}"
        for name, number, line in sources("gasoline_es", "projections")
        for case in _CASE.findall(line)
        if case not in CASES
    ]
    assert lost == []
