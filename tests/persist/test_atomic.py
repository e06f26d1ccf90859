import os
import stat
import subprocess
import sys
import threading

import pytest

from boxloop.persist import open_temporary, write_atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_replaces_and_leaves_nothing_beside(tmp_path):
    target = tmp_path / "fit.boxloop"
    write_atomic(target, b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["fit.boxloop"]


def test_the_file_has_the_usual_permissions(tmp_path):
    target, plain = tmp_path / "a", tmp_path / "b"
    write_atomic(target, b"")
    plain.write_bytes(b"")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_link_is_replaced_not_followed(tmp_path):
    precious, link = tmp_path / "precious", tmp_path / "link"
    precious.write_bytes(b"precious")
    link.symlink_to(precious)
    write_atomic(link, b"new")
    assert precious.read_bytes() == b"precious"
    assert not link.is_symlink()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_an_error_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch, failing):
    target = tmp_path / "fit.boxloop"
    write_atomic(target, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["fit.boxloop"]


def test_ctrl_c_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    target = tmp_path / "fit.boxloop"
    write_atomic(target, b"old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["fit.boxloop"]


def test_content_is_synced_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def note_replace(source, target):
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_atomic(tmp_path / "a", b"x")
    assert calls == ["file", "rename", "folder"]


def test_a_missing_folder_or_a_folder_as_target_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "nowhere" / "a", b"x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", b"x")
    assert names(tmp_path) == ["folder"]


def test_leftovers_of_this_target_are_swept_and_nothing_else(tmp_path):
    kept = [
        ".fit.boxloop.1-0123abcd.tmp.bak",
        ".fit.boxloop.tmp",
        ".fit.boxloopx.1-0123abcd.tmp",
        ".fitxboxloop.1-0123abcd.tmp",
        ".other.1-0123abcd.tmp",
        "fit.boxloop.1-0123abcd.tmp",
    ]
    for name in [*kept, f".fit.boxloop.{os.getpid()}-0123abcd.tmp", ".fit.boxloop.1-89abcdef.tmp"]:
        (tmp_path / name).write_bytes(b"half")
    write_atomic(tmp_path / "fit.boxloop", b"new")
    assert names(tmp_path) == sorted([*kept, "fit.boxloop"])


def test_a_file_still_being_written_is_not_swept(tmp_path):
    target = tmp_path / "fit.boxloop"
    with open_temporary(target) as (file, temporary):
        write_atomic(target, b"first")
        assert temporary.exists()
        file.write(b"second")
        file.flush()
        os.replace(temporary, target)
    assert target.read_bytes() == b"second"


def test_a_file_written_by_another_process_is_not_swept(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom boxloop.persist.atomic import open_temporary\n"
        "with open_temporary(Path(sys.argv[1])):\n print('ready', flush=True)\n sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "fit")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        write_atomic(tmp_path / "fit", b"new")
        assert len(names(tmp_path)) == 2
        child.kill()
    write_atomic(tmp_path / "fit", b"newer")
    assert names(tmp_path) == ["fit"]


def test_a_pipe_named_like_a_leftover_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / ".fit.1-0123abcd.tmp")
    write_atomic(tmp_path / "fit", b"new")
    assert (tmp_path / "fit").read_bytes() == b"new"


def test_threads_that_save_the_same_file_leave_one_of_theirs(tmp_path):
    errors = []

    def save(content):
        for _ in range(30):
            try:
                write_atomic(tmp_path / "fit", content)
            except BlockingIOError as error:
                errors.append(error)

    threads = [threading.Thread(target=save, args=(bytes([i]) * 1000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / "fit").read_bytes()
    assert content == content[:1] * 1000
    assert names(tmp_path) == ["fit"]
    assert len(errors) < 60
