"""Revisions: the commit that last changed a file, given only where it holds these bytes."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from app.cli.git_revision import committed_files, revision_of

IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip


class Repository:
    def __init__(self, root: Path, object_format: str = "sha1") -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main", f"--object-format={object_format}")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.root), *arguments],
            check=True, capture_output=True, text=True, env={**os.environ, **IDENTITY},
        ).stdout.strip()  # fmt: skip

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.root / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (self.root / name.replace("__", "/")).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")

    def sign_head(self) -> None:
        """Put a signature on the last commit; to check it, git would run gpg.program."""
        head, _, message = self.git("cat-file", "commit", "HEAD").partition("\n\n")
        signature = "-----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
        signed = self.root / ".git" / "signed"
        signed.write_text(f"{head}\ngpgsig {signature}\n\n{message}\n")
        commit = self.git("hash-object", "-t", "commit", "-w", str(signed))
        self.git("update-ref", "HEAD", commit)

    def revision(self, name: str, folder: str = ".") -> str:
        base = self.root / folder
        found = committed_files(base, [name])
        return revision_of((base / name).read_bytes(), found.get(name))


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(params=["sha1", "sha256"])
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Repository:
    return Repository(tmp_path / "repository", request.param)


def test_a_clean_file_has_the_commit_that_last_changed_it(repository: Repository) -> None:
    first = repository.commit(a="1", b="1", folder__c="1")
    second = repository.commit(b="2")
    repository.commit()
    assert repository.revision("a") == f"git:{first}"
    assert repository.revision("b") == f"git:{second}"
    assert repository.revision("c", folder="folder") == f"git:{first}"
    assert repository.revision("folder/c") == f"git:{first}"


def test_a_changed_or_untracked_file_has_its_digest(repository: Repository) -> None:
    repository.commit(a="1", b="1")
    (repository.root / "a").write_text("2")
    (repository.root / "b").write_text("2")
    repository.git("add", "b")
    (repository.root / "new").write_text("3")
    assert repository.revision("a") == digest("2")
    assert repository.revision("b") == digest("2")
    assert repository.revision("new") == digest("3")


def test_a_change_that_git_was_told_not_to_see_has_its_digest(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(a="1")
    repository.git("update-index", "--assume-unchanged", "a")
    (tmp_path / "a").write_text("2")
    assert repository.git("status", "--porcelain") == ""
    assert repository.revision("a") == digest("2")


def test_a_file_whose_line_ends_were_converted_has_its_digest(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.git("config", "core.autocrlf", "true")
    repository.commit(a="1\n")
    (tmp_path / "a").unlink()
    repository.git("checkout", "--", "a")
    assert (tmp_path / "a").read_bytes() == b"1\r\n"
    assert repository.revision("a") == digest("1\r\n")


def test_what_a_merge_made_has_the_merges_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(a="1\n2\n3\n4\n5\n", b="1")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(a="1\n2\n3\n4\nfive\n", only_there="x")
    repository.git("checkout", "-q", "main")
    here = repository.commit(a="one\n2\n3\n4\n5\n", b="2")
    repository.git("merge", "-q", "--no-edit", "side")
    merge = repository.git("rev-parse", "HEAD")
    # The merged text stands in neither parent: the commit of one of them would be wrong.
    assert repository.revision("a") == f"git:{merge}"
    assert repository.revision("only_there") == f"git:{merge}"
    assert repository.revision("b") == f"git:{here}"


def test_every_commit_that_is_named_holds_the_files_very_bytes(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for round_ in range(6):
        repository.git("checkout", "-q", "-b", f"side{round_}")
        repository.commit(**{f"f{round_}": f"{round_}", f"f{round_ // 2}": f"again {round_}"})
        repository.git("checkout", "-q", "main" if round_ else f"side{round_}")
        if round_ == 0:
            repository.git("branch", "-f", "main")
            repository.git("checkout", "-q", "main")
        repository.commit(shared=f"{round_}")
        repository.git("merge", "-q", "--no-edit", f"side{round_}")
    names = repository.git("ls-files").split()
    found = committed_files(tmp_path, names)
    assert sorted(found) == sorted(names)
    for name in names:
        then = repository.git("show", f"{found[name].commit}:{name}")
        assert then == (tmp_path / name).read_text()


def test_names_that_are_hard_to_tell_from_gits_own_output_are_found(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    hard = ["\nnewline", "a\nb", "\"quoted\" 'é' :(glob)*", "f" * 40, " ", os.fsdecode(b"\xff")]
    for name in hard:
        (tmp_path / name).write_text(name if name.isprintable() else "x")
    commit = repository.commit()
    assert {
        name: one.commit for name, one in committed_files(tmp_path, hard).items()
    } == dict.fromkeys(hard, commit)


def test_a_folder_outside_of_git_or_without_a_commit_has_no_commits(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    assert committed_files(tmp_path, ["a"]) == {}
    Repository(tmp_path)
    assert committed_files(tmp_path, ["a"]) == {}


def test_without_git_every_file_has_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    repository.commit(a="1")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert repository.revision("a") == digest("1")


def test_variables_of_a_hook_do_not_lead_to_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "mine")
    commit = repository.commit(a="1")
    other = Repository(tmp_path / "other")
    other.commit(a="1")
    monkeypatch.setenv("GIT_DIR", str(other.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.root / ".git" / "index"))
    assert repository.revision("a") == f"git:{commit}"


def test_no_program_that_the_repository_names_is_run(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit(a="1")
    trap = tmp_path / ".git" / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'sprung'}\n")
    trap.chmod(0o755)
    (tmp_path / ".gitattributes").write_text("* diff=trap filter=trap\n")
    repository.commit()
    for key in ("core.fsmonitor", "diff.external", "diff.trap.command", "diff.trap.textconv",
                "filter.trap.clean", "core.pager", "gpg.program"):  # fmt: skip
        repository.git("config", key, str(trap))
    repository.git("config", "log.showSignature", "true")
    repository.sign_head()
    assert repository.revision("a").startswith("git:")
    assert not (tmp_path / "sprung").exists()
