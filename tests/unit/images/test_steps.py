"""Steps of a build run once for the same inputs, and completely or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from images.errors import ImageError
from images.output import copy_tree
from images.programs import find, require, run, run_for_output
from images.steps import OLD_KEPT, BuildSteps, Input, hash_tree, make_key


class Counted:
    """Step that makes a file and counts its runs."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, folder: Path, _log: Path) -> None:
        self.done += 1
        (folder / "file").write_text(str(self.done))


@pytest.fixture
def steps(tmp_path: Path) -> BuildSteps:
    return BuildSteps(tmp_path / "cache", say=lambda _: None)


class TestResults:
    def test_equal_inputs_run_a_step_once(self, steps: BuildSteps) -> None:
        make = Counted()
        first = steps.result("part", "a part", ["one"], make)
        assert steps.result("part", "a part", ["one"], make) == first
        assert (make.done, steps.seconds["part"]) == (1, 0.0)

    def test_changed_inputs_or_force_run_the_step(self, steps: BuildSteps) -> None:
        make = Counted()
        steps.result("part", "a part", ["one"], make)
        steps.result("part", "a part", ["two"], make)
        assert (steps.result("part", "a part", ["two"], make, again=True) / "file").read_text() == "3"

    def test_failure_leaves_no_result(self, steps: BuildSteps, tmp_path: Path) -> None:
        def fail(folder: Path, _log: Path) -> None:
            (folder / "half").touch()
            raise ImageError("no")

        with pytest.raises(ImageError):
            steps.result("part", "a part", ["one"], fail)
        made = steps.result("part", "a part", ["one"], Counted())
        assert [path.name for path in made.iterdir()] == ["file"]

    @pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free some space"), (errno.EIO, "")])
    def test_disk_error_is_reported(self, steps: BuildSteps, number: int, hint: str) -> None:
        def full(folder: Path, _log: Path) -> None:
            raise OSError(number, os.strerror(number), str(folder / "file"))

        with pytest.raises(ImageError, match=rf"a part: .*file: {os.strerror(number)}") as failed:
            steps.result("part", "a part", ["one"], full)
        assert failed.value.hint.startswith(hint)
        assert steps.result("part", "a part", ["one"], Counted())

    def test_old_results_are_removed(self, steps: BuildSteps, tmp_path: Path) -> None:
        for number in range(OLD_KEPT + 2):
            newest = steps.result("part", "a part", [str(number)], Counted())
        left = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
        assert len(left) == OLD_KEPT
        assert newest in left

    def test_interrupted_results_are_removed(self, steps: BuildSteps, tmp_path: Path) -> None:
        def cut(_folder: Path, _log: Path) -> None:
            raise KeyboardInterrupt

        for each in ("part", "part-other"):
            with pytest.raises(KeyboardInterrupt):
                steps.result(each, "a part", ["one"], cut)
        steps.result("part", "a part", ["two"], Counted())
        [left] = (tmp_path / "cache").glob("*.part")
        assert left.name.startswith("part-other-")

    def test_unwritable_cache_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ImageError, match=f"{os.strerror(errno.ENOTDIR)}|{os.strerror(errno.EEXIST)}"):
            BuildSteps(tmp_path / "file").result("part", "a part", [], Counted())


class TestKeys:
    def test_files_and_folders_count_by_content_and_name(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        file = folder / "a"
        file.write_text("1")
        seen = {hash_tree(folder)}
        file.write_text("2")
        seen.add(hash_tree(folder))
        file.chmod(0o755)
        seen.add(hash_tree(folder))
        file.rename(folder / "b")
        seen.add(hash_tree(folder))
        (folder / "c").symlink_to("b")
        seen.add(hash_tree(folder))
        assert len(seen) == 5
        inputs: list[list[Input]] = [[folder], [folder / "b"], ["b"], [b"b", "c"], ["bc"]]
        assert len({make_key(each) for each in inputs}) == 5

    def test_generated_files_do_not_count(self, tmp_path: Path) -> None:
        before = hash_tree(tmp_path)
        (tmp_path / "__pycache__").mkdir()
        (tmp_path / "__pycache__" / "a.pyc").touch()
        (tmp_path / "_loops_0123.so").touch()
        assert hash_tree(tmp_path) == before


class TestPrograms:
    def test_missing_program_is_named_with_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("images.programs.find", lambda _: None)
        with pytest.raises(ImageError, match="genimage, mcopy") as caught:
            require("genimage", "mcopy")
        assert caught.value.hint == "sudo apt install genimage mtools"

    def test_missing_file_is_named(self) -> None:
        with pytest.raises(ImageError) as caught:
            require("sh", files={"/nonexistent/u-boot.bin": "u-boot-qemu"})
        assert caught.value.hint == "sudo apt install u-boot-qemu"

    def test_failing_program_shows_its_output(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match=r"3:\n(?s:.*)no room"):
            run("sh", "-c", "echo no room; exit 3", log=tmp_path / "log")
        with pytest.raises(ImageError, match="cannot be started"):
            run(tmp_path / "none", log=tmp_path / "log")
        with pytest.raises(ImageError, match="no such thing"):
            run_for_output("sh", "-c", "echo no such thing >&2; exit 1")

    def test_program_gets_input_and_its_output_is_returned(self, tmp_path: Path) -> None:
        run("cat", log=tmp_path / "log", given="hello")
        assert (tmp_path / "log").read_text() == f"$ {find('cat')}\nhello"


class TestCopies:
    def test_copy_replaces_only_its_own_earlier_result(self, tmp_path: Path) -> None:
        made, out = tmp_path / "made", tmp_path / "out"
        made.mkdir()
        (made / "program").write_text("1")
        copy_tree(made, out, holding="program")
        (out / "old").touch()
        copy_tree(made, out, holding="program")
        assert [path.name for path in out.iterdir()] == ["program"]
        other = tmp_path / "other"
        other.mkdir()
        (other / "letters").touch()
        with pytest.raises(ImageError, match="by this command"):
            copy_tree(made, other, holding="program")
        assert (other / "letters").exists()
