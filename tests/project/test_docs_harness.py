"""The harness that runs the documents' snippets finds what is wrong in them, and leaves alone what is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.project.doc_console import JQ_VARIABLE, ROOT, page_environment, run_page
from tests.project.doc_pages import Block, PageError, commands, matches, parse_page


def run(text: str, folder: Path, *, timeout_s: float = 30.0) -> None:
    run_page(parse_page(dedent(text), name="page.md"), folder, timeout_s=timeout_s)


def fails(text: str, folder: Path, *, timeout_s: float = 30.0) -> str:
    with pytest.raises(PageError) as caught:
        run(text, folder, timeout_s=timeout_s)
    return str(caught.value)


def console(body: str) -> Block:
    return Block(page="page.md", line=10, language="console", body=dedent(body).strip("\n"))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_blocks_keep_their_line_and_lose_their_indent() -> None:
    text = "One\n\n- item\n\n  ```python\n  if True:\n      pass\n  ```\n\n~~~text\n```\n~~~\n"
    blocks = parse_page(text, name="page.md").blocks
    assert [(block.line, block.language, block.body) for block in blocks] == [
        (5, "python", "if True:\n    pass"),
        (10, "text", "```"),
    ]


def test_an_open_fence_is_an_error() -> None:
    with pytest.raises(PageError, match=r"^page\.md:2: this fence is never closed"):
        parse_page("\n```python\nprint(1)\n", name="page.md")


@pytest.mark.parametrize("info", ["", "bash", "sh", "py", "pycon"])
def test_a_block_that_nothing_would_test_is_an_error(info: str) -> None:
    with pytest.raises(PageError, match="say which of console, diff, json"):
        parse_page(f"```{info}\nx\n```\n", name="page.md")


def test_no_run_needs_a_reason_right_before_it() -> None:
    block = "```python no-run\nraise SystemExit(1)\n```\n"
    with pytest.raises(PageError, match="needs its reason"):
        parse_page(block, name="page.md")
    with pytest.raises(PageError, match="needs its reason"):
        parse_page("<!-- no-run: far away -->\n\nWords.\n\n" + block, name="page.md")
    with pytest.raises(PageError, match="needs its reason"):
        parse_page("<!-- no-run: -->\n" + block, name="page.md")
    page = parse_page("<!-- other -->\n\n<!-- no-run: needs a\nbroker -->\n\n" + block, name="page.md")
    assert [b.no_run for b in page.blocks] == ["needs a\nbroker"]


def test_other_marks_are_an_error() -> None:
    with pytest.raises(PageError, match="only `no-run` is"):
        parse_page("```python norun\n```\n", name="page.md")
    with pytest.raises(PageError, match="only `no-run` is"):
        parse_page("<!-- no-run: x -->\n```json no-run\n```\n", name="page.md")


def test_commands_are_split_from_their_output_and_exit_code() -> None:
    block = console(r"""
        $ python crash.py  # exit: 137
        charged
        $ python crash.py \
            --again
        $ cat <<END
        > one
        > END
        one

        $ false
        # exit: 1
    """)
    assert [(c.line, c.text, c.expected, c.exit_code) for c in commands(block)] == [
        (11, "python crash.py", ("charged",), 137),
        (13, "python crash.py \\\n    --again", (), 0),
        (15, "cat <<END\none\nEND", ("one",), 0),
        (20, "false", (), 1),
    ]


@pytest.mark.parametrize("body", ["no prompt", "output\n$ true", ""])
def test_a_console_block_without_a_prompt_is_an_error(body: str) -> None:
    with pytest.raises(PageError, match="begins with a `"):
        commands(console(body))


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (["a"], ["a"]),
        (["took … s"], ["took 1.25 s"]),
        (["…"], []),
        (["…"], ["a", "b"]),
        (["first", "…", "last"], ["first", "last"]),
        (["first", "…", "last"], ["first", "2", "3", "last"]),
        (["[x] … (y)"], ["[x] + (y)"]),
    ],
)
def test_output_as_shown_matches(expected: list[str], actual: list[str]) -> None:
    assert matches(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (["a"], ["b"]),
        (["a"], ["a", "b"]),
        (["a", "b"], ["a"]),
        (["a…b"], ["a", "b"]),
        (["a.c"], ["abc"]),
        (["…", "last"], ["last", "more"]),
    ],
)
def test_other_output_does_not_match(expected: list[str], actual: list[str]) -> None:
    assert not matches(expected, actual)


# --- running ----------------------------------------------------------------------------------------------------------


def test_blocks_of_a_page_build_on_each_other(tmp_path: Path) -> None:
    run(
        """
        ```python
        # file: shop/orders.py
        PRICE = 9
        ```
        ```python
        # file: pay.py
        import sys
        from shop.orders import PRICE
        if __name__ == "__main__":
            print("charged", PRICE)
            sys.exit(7)
        ```
        ```python
        import shop.orders
        assert shop.orders.PRICE == 9
        ```
        ```console
        $ python pay.py  # exit: 7
        charged 9
        $ ls -1
        pay.py
        shop
        ```
        """,
        tmp_path,
    )


def test_a_failing_script_is_found_with_its_place(tmp_path: Path) -> None:
    message = fails("Words.\n\n```python\nraise ValueError('lost')\n```\n", tmp_path)
    assert message.startswith("page.md:3: this script ended with 1:")
    assert "ValueError: lost" in message


def test_a_warning_in_a_script_is_an_error(tmp_path: Path) -> None:
    assert "DeprecationWarning" in fails(
        "```python\nimport warnings\nwarnings.warn('old', DeprecationWarning)\n```\n", tmp_path
    )


def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    assert "outside" in fails("```python\n# file: ../x.py\n```\n", tmp_path)


def test_wrong_output_and_wrong_exit_codes_are_found(tmp_path: Path) -> None:
    message = fails("```console\n$ true\n$ echo one\ntwo\n```\n", tmp_path)
    assert message == "page.md:3: `echo one` printed\none\nand the page says\ntwo"
    assert "ended with 3 and not 0" in fails("```console\n$ (exit 3)\n```\n", tmp_path)
    assert "ended with 0 and not 1" in fails("```console\n$ true  # exit: 1\n```\n", tmp_path)
    assert "ended with 3 and not 0" in fails("```console\n$ exit 3\n```\n", tmp_path)


def test_a_hang_is_found(tmp_path: Path) -> None:
    assert "did not end within 1 s" in fails("```console\n$ sleep 100\n```\n", tmp_path, timeout_s=1)
    assert "did not end within 1 s" in fails("```python\nimport time\ntime.sleep(100)\n```\n", tmp_path, timeout_s=1)


def test_the_shell_lives_for_the_whole_page_and_is_a_terminal(tmp_path: Path) -> None:
    run(
        """
        ```console
        $ mkdir shop && cd shop && export ORDER=42
        $ test -t 1 && echo terminal
        terminal
        $ stty size </proc/self/fd/1
        50 120
        ```
        ```console
        $ echo $ORDER in $(basename $PWD)
        42 in shop
        $ printf 'on stderr\\n' >&2
        on stderr
        ```
        """,
        tmp_path,
    )


def test_a_killed_command_reads_as_at_a_terminal(tmp_path: Path) -> None:
    run("```console\n$ bash -c 'kill -9 $$'  # exit: 137\nKilled\n```\n", tmp_path)


def test_background_commands_can_be_ended_and_do_not_outlive_the_page(tmp_path: Path) -> None:
    run(
        """
        ```console
        $ sleep 1000 & echo $! >first
        $ kill %1
        $ sleep 1000 & echo $! >second
        ```
        """,
        tmp_path,
    )
    for name in ("first", "second"):
        assert gone(int((tmp_path / name).read_text())), name


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_what_ci_runs_is_not_run_again(tmp_path: Path) -> None:
    run("```console\n$ make demo\n…\n$ make test\n… passed …\n```\n", tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_repository_is_named_only_where_the_page_uses_it(tmp_path: Path) -> None:
    run(f"```console\n$ echo $PROJECT\n{ROOT}\n```\n", tmp_path)
    run("```python\nimport os\nassert 'PROJECT' not in os.environ\n```\n", tmp_path)


@pytest.mark.parametrize(
    "block", ['json\n{"a": [1]}', 'json\n{"a": 1}\n{"a": 2}', 'json\n{"a": …}', "toml\n[a]\nb = 1", "text\n{"]
)
def test_data_that_parses_is_accepted(block: str, tmp_path: Path) -> None:
    run(f"```{block}\n```\n", tmp_path)


@pytest.mark.parametrize("block", ['json\n{"a": 1', 'json\n{"a": 1}\nwords', "toml\n[a"])
def test_data_that_does_not_parse_is_found(block: str, tmp_path: Path) -> None:
    assert "does not parse" in fails(f"```{block}\n```\n", tmp_path)


# --- jq ---------------------------------------------------------------------------------------------------------------

ORDERS = '{"id":"a","cents":[900,1]}\n{"id":"\u00e9","cents":[]} {"id":null}\n'


def jq(folder: Path, *arguments: str, given: str = ORDERS) -> tuple[int, str]:
    """Run the stand-in for jq as pages do; return its exit code and what it printed."""
    programs = folder / "programs of pages"
    programs.mkdir(exist_ok=True)
    page_environment(programs, project=False)
    done = subprocess.run(
        [programs / "jq", *arguments], cwd=folder, input=given, capture_output=True, text=True, check=False
    )
    assert (done.returncode in (0, 1, 4)) == (done.stderr == ""), done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["-c", "."], '{"id":"a","cents":[900,1]}\n{"id":"é","cents":[]}\n{"id":null}\n'),
        ([".cents[:1]?"], "[\n  900\n]\n[]\nnull\n"),
        (["-r", ".id"], "a\né\nnull\n"),
        (["-s", "length"], "3\n"),
        (["-cs", "map(.id)"], '["a","é",null]\n'),
        (["-R", "-c", "[fromjson? | .id]"], '["a"]\n[]\n'),
        (["-Rs", "length"], f"{len(ORDERS)}\n"),
        (["-n", "-r", "--arg", "who", "Kim", '"by \\($who)"'], "by Kim\n"),
        (["-c", "--argjson", "n", "[1]", "-n", "$n"], "[1]\n"),
        (["-j", ".id // empty"], "aé"),
        (["-S", "-c", "select(.cents[0])"], '{"cents":[900,1],"id":"a"}\n'),
        (["--raw-output", ".id", "-"], "a\né\nnull\n"),
    ],
)
def test_the_stand_in_for_jq_prints_what_jq_prints(arguments: list[str], printed: str, tmp_path: Path) -> None:
    assert jq(tmp_path, *arguments) == (0, printed)
    if shutil.which("jq"):
        real = subprocess.run(
            ["jq", *arguments], cwd=tmp_path, input=ORDERS, capture_output=True, text=True, check=True
        )
        assert real.stdout == printed


def test_the_stand_in_for_jq_reads_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("1\n2\n")
    (tmp_path / "2.jsonl").write_text("3")
    assert jq(tmp_path, ".+1", "1.jsonl", "2.jsonl", given="") == (0, "2\n3\n4\n")
    assert jq(tmp_path, ".", "1.jsonl", "no such", given="") == (2, "1\n2\n")


@pytest.mark.parametrize(
    ("arguments", "given", "code", "printed"),
    [
        (["-e", "."], "1 true", 0, "1\ntrue\n"),
        (["-e", "."], "true false", 1, "true\nfalse\n"),
        (["-es", "map(.a) | any"], '{"a":null}', 1, "false\n"),
        (["-e", "empty"], "1", 4, ""),
        ([".a"], '1 {"a":2}', 5, "2\n"),
        (["."], "1 {2", 2, "1\n"),
        ([".["], "1", 3, ""),
        (["--nothing", "."], "1", 2, ""),
        ([], "1", 2, ""),
        (["--arg", "x"], "1", 2, ""),
    ],
)
def test_the_stand_in_for_jq_ends_as_jq_ends(
    arguments: list[str], given: str, code: int, printed: str, tmp_path: Path
) -> None:
    assert jq(tmp_path, *arguments, given=given) == (code, printed)


def test_pages_have_a_jq_wherever_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = """
        ```console
        $ echo '{"id": "a"} {"id": "b"}' | jq -r .id | head -1
        a
        $ command -v jq
        …SHOWN/jq
        ```
        """
    # A machine that has neither jq nor this repository's .venv on its PATH.
    few = tmp_path / "few"
    few.mkdir()
    for name in ("bash", "sh", "head", "basename"):
        (few / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    monkeypatch.setenv("PATH", str(few))
    run(page.replace("SHOWN", "/gasoline-docs-…"), _made(tmp_path / "without"))
    # A real one wins, unless it is not wanted.
    (few / "jq").write_text(f"#!/bin/sh\nexec {sys.executable} -c \"print('a')\"\n")
    (few / "jq").chmod(0o755)
    run(page.replace("SHOWN", str(few)), _made(tmp_path / "real"))
    monkeypatch.setenv(JQ_VARIABLE, "shim")
    run(page.replace("SHOWN", "/gasoline-docs-…"), _made(tmp_path / "shim"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
