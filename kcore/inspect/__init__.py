"""Reading the files of logs below a log, sound or damaged."""
