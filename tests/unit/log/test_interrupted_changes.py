"""Files that an unfinished change of a log left, when the log is opened."""

import logging

from kcore.log.open_log import open_log


def test_the_removal_of_leftover_files_is_one_line_of_the_log(tmp_path, caplog):
    open_log(tmp_path / "t-0", "a").close()
    names = [f"{n:020}.log.deleted" for n in range(1, 600)] + [f"{n:020}.index.cleaned" for n in range(1, 4)]
    for name in names:
        (tmp_path / "t-0" / name).touch()
    with caplog.at_level(logging.INFO):
        open_log(tmp_path / "t-0", "a").close()
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.name in names]
    (line,) = [message for message in caplog.messages if "leftover" in message]
    assert "removing 602 leftover files: " in line and len(line) < 400
