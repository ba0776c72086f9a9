"""The line that says how far a command is."""

import io

from bigbatch.train_loop.host.command_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_every_ten_seconds_and_on_a_terminal_one_that_is_drawn_anew() -> None:
    now, pipe, terminal = [0.0], io.StringIO(), Terminal()
    for out in (pipe, terminal):
        now[0] = 0.0
        with ProgressLine(10.0, out, lambda: now[0]) as progress:
            for step in range(1, 51):
                now[0] += 0.5
                progress.show(f"step {step} of 50")
    assert pipe.getvalue() == "step 20 of 50\nstep 40 of 50\n"
    assert terminal.getvalue().count("\r") == 50 and terminal.getvalue().count("\n") == 1
