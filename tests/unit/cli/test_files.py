"""Which files are taken: what git would take, in an order that depends on names alone."""

import os
import subprocess
from pathlib import Path

import pytest

from app.api.shared_schemas import MAX_SOURCE_ID_BYTES, MAX_SOURCE_ID_CHARS
from app.cli.files import Selection, select_files
from app.errors import ConfigurationError


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def select(*paths: Path, prefix: str = "", private: Path = Path("/nonexistent")) -> Selection:
    return select_files(paths, prefix=prefix, private_folder=private)


def ids(selection: Selection) -> list[str]:
    return [file.source_id for file in selection.files]


def test_a_folder_is_searched_in_full_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, "b/two.md", "b/one.md", "a.md", "B.md", "b.md", "b/deep/er/x.py")
    assert ids(select(tmp_path)) == [
        "B.md", "a.md", "b/deep/er/x.py", "b/one.md", "b/two.md", "b.md",
    ]  # fmt: skip


def test_an_id_is_the_path_from_the_given_folder_after_the_prefix(tmp_path: Path) -> None:
    write(tmp_path, "docs/adr/1.md", "README.md")
    found = select(tmp_path / "docs", tmp_path / "README.md", prefix="kb/")
    assert ids(found) == ["kb/adr/1.md", "kb/README.md"]


def test_a_name_is_neither_composed_nor_decomposed(tmp_path: Path) -> None:
    decomposed = "cafe\u0301.md"
    write(tmp_path, decomposed)
    assert ids(select(tmp_path)) == [decomposed]


def test_two_files_of_one_id_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/x.md", "b/x.md")
    with pytest.raises(ConfigurationError, match="--prefix"):
        select(tmp_path / "a", tmp_path / "b")


def test_a_file_that_is_given_twice_is_taken_once(tmp_path: Path) -> None:
    write(tmp_path, "x.md")
    assert ids(select(tmp_path, tmp_path / "x.md")) == ["x.md"]


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        select(tmp_path / "missing")


def test_gitignore_files_hold_the_nested_ones_too(tmp_path: Path) -> None:
    write(tmp_path, "keep.md", "a.log", "build/x.md", "sub/a.log", "sub/b.tmp", "sub/deep/b.tmp")
    write(tmp_path, "sub/keep.log", ".git/config", "sub/module/.git", "other/b.tmp")
    (tmp_path / ".gitignore").write_text("*.log\n/build/\n!\n")
    (tmp_path / "sub" / ".gitignore").write_text("*.tmp\n!keep.log\n")
    assert ids(select(tmp_path)) == [
        ".gitignore", "keep.md", "other/b.tmp", "sub/.gitignore", "sub/keep.log",
    ]  # fmt: skip


def test_the_same_files_are_taken_as_git_takes(tmp_path: Path) -> None:
    write(
        tmp_path, "a/b/c.txt", "a/b/d.log", "a/x.log", "doc/frotz/f", "frotz/g", "foo/bar/baz",
        "foo/other", "abc/x/y", "q#1", "!bang", "sp ace ", "deep/1/2/3.o", "deep/keep.o",
    )  # fmt: skip
    (tmp_path / ".gitignore").write_text(
        "*.log\n!a/x.log\ndoc/frotz\nfoo/*\n!foo/bar\nabc/**\n\\!bang\nsp\\ ace\\ \n# note\n*.o\n"
    )
    write(tmp_path / "deep", ".gitignore", text="!keep.o\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-z", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert set(ids(select(tmp_path))) == set(listed.split("\0")) - {""}


def test_the_gitignore_files_above_a_folder_hold_up_to_the_repositorys_top(tmp_path: Path) -> None:
    write(tmp_path, "repository/app/x.py", "repository/app/__pycache__/x.pyc", "repository/.git/x")
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "repository" / ".gitignore").write_text("__pycache__/\n")
    assert ids(select(tmp_path / "repository" / "app")) == ["x.py"]


def test_a_folder_that_is_named_is_taken_also_where_it_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, ".git/x", "build/docs/page.md", "build/docs/x.log")
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "build" / ".gitignore").write_text("*.log\n")
    assert ids(select(tmp_path / "build")) == [".gitignore", "docs/page.md"]
    assert ids(select(tmp_path)) == [".gitignore"]


def test_the_folder_with_keys_and_database_is_never_entered(tmp_path: Path) -> None:
    write(tmp_path, "data/development.key", "data/postgres/passwords.json", "x.md")
    private = tmp_path / "data"
    assert ids(select(tmp_path, private=private)) == ["x.md"]
    assert ids(select(private, private=private)) == []
    assert ids(select(private / "postgres", private=private)) == []
    assert ids(select(private / "development.key", private=private)) == []


def test_links_pipes_and_names_that_cannot_be_ids_are_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    write(tmp_path, "x.md", "folder/y.md")
    (tmp_path / "link").symlink_to("x.md")
    (tmp_path / "linked-folder").symlink_to("folder")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"bad\xff.md")).write_text("x")
    found = select(tmp_path)
    assert ids(found) == ["folder/y.md", "x.md"]
    assert {(Path(one.path).name, one.reason) for one in found.skipped} == {
        ("link", "a symbolic link"),
        ("linked-folder", "a symbolic link"),
        ("pipe", "not a regular file"),
        ("bad\udcff.md", "its name is not UTF-8"),
    }


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("p" * MAX_SOURCE_ID_CHARS, "longer than 1024 characters"),
        ("\U00020000" * (MAX_SOURCE_ID_BYTES // 4), "longer than 2048 bytes"),
    ],
    ids=["characters", "bytes"],
)
def test_an_id_that_is_too_long_for_the_service_is_skipped(
    tmp_path: Path, prefix: str, reason: str
) -> None:
    write(tmp_path, "x.md", "y")
    found = select(tmp_path, prefix=prefix)
    assert ids(found) == []
    assert [reason in one.reason for one in found.skipped] == [True, True]
    assert ids(select(tmp_path, prefix=prefix[:-4])) == [prefix[:-4] + "x.md", prefix[:-4] + "y"]
