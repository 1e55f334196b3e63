"""Draws docs/images/demo.svg: runs the demo on a terminal of its own, and keeps its last screen as a picture.

  python3 docs/images/demo.py --stoker target/release/stoker         # what is behind -- goes to the demo
"""

import argparse
import fcntl
import html
import os
import pathlib
import pty
import re
import struct
import sys
import termios

COLUMNS, ROWS = 120, 60
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff", "2": "#8b949e", "90": "#8b949e"}
PLAIN, LINE, LEFT, TOP, WIDE = "#e6edf3", 19, 20, 36, 7.85
CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """As much of a terminal as the demo uses: lines, colours, one cursor that goes up again."""

    def __init__(self):
        self.rows, self.at, self.column, self.colour = [[]], 0, 0, PLAIN

    def take(self, text):
        while text:
            code = CODE.match(text)
            if code:
                self.control(code[2], code[1])
                text = text[code.end() :]
                continue
            if text[0] == "\n":
                self.at += 1
                if self.at == len(self.rows):
                    self.rows.append([])
            elif text[0] == "\r":
                self.column = 0
            else:
                row = self.rows[self.at]
                row.extend([(" ", PLAIN)] * (self.column + 1 - len(row)))
                row[self.column] = (text[0], self.colour)
                self.column += 1
            text = text[1:]

    def control(self, kind, argument):
        if kind == "A":
            self.at = max(0, self.at - int(argument or 1))
        elif kind == "K":
            del self.rows[self.at][self.column :]
        elif kind == "J":
            del self.rows[self.at][self.column :]
            del self.rows[self.at + 1 :]
        elif kind == "m":
            known = [COLOURS[part] for part in argument.split(";") if part in COLOURS]
            self.colour = known[-1] if known else PLAIN


def watched(command):
    """Runs it on a terminal; gives its last screen."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ.update(TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)
    screen, rest = Screen(), b""
    while True:
        try:
            more = os.read(terminal, 65536)
        except OSError:  # how the end of the other side reads on Linux
            more = b""
        rest += more
        # A character or a code may come in two pieces: whole lines do not.
        whole, _, rest = rest.rpartition(b"\n") if more else (rest, b"", b"")
        screen.take(whole.decode(errors="replace") + ("\n" if whole else ""))
        if not more:
            break
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        sys.exit("the demo failed:\n" + "\n".join("".join(cell[0] for cell in row) for row in screen.rows))
    return screen.rows


def wrapped(rows):
    """Lines in the width of the picture."""
    for row in rows:
        while len(row) > COLUMNS:
            blank = max((at for at in range(40, COLUMNS) if row[at][0] == " "), default=COLUMNS)
            yield row[:blank]
            row = [(" ", PLAIN)] * 4 + row[blank + 1 :]
        yield row


def drawn(rows):
    """The picture. Every stretch of one colour has a place and a length of its own, so that boxes are closed in every font."""
    wide = round(2 * LEFT + COLUMNS * WIDE)
    high = TOP + LINE * len(rows)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img"'
    yield ' aria-label="Output of stoker demo">'
    yield f'<rect width="{wide}" height="{high}" rx="8" fill="#0d1117"/>'
    yield '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13">'
    for number, row in enumerate(rows):
        begin = 0
        while begin < len(row):
            end = begin
            while end < len(row) and row[end][1] == row[begin][1]:
                end += 1
            text = "".join(cell[0] for cell in row[begin:end])
            if text.strip():
                x, y = LEFT + begin * WIDE, TOP + LINE * number
                yield (
                    f'<text x="{x:.1f}" y="{y}" textLength="{(end - begin) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs" '
                    f'fill="{row[begin][1]}">{html.escape(text).replace(" ", "&#160;")}</text>'
                )
            begin = end
    yield "</g></svg>"


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stoker", default="stoker", help="the program")
    parser.add_argument("--dir", default="/tmp", help="a folder on the drive to use; it is in the picture")
    parser.add_argument("--output", default=str(here / "demo.svg"))
    parser.add_argument("more", nargs="*")
    args = parser.parse_args()
    rows = watched([args.stoker, "demo", "--dir", args.dir, *args.more])
    while rows and not rows[-1]:
        rows.pop()
    prompt = [(char, PLAIN) for char in " ".join(["$ stoker demo", *args.more])]
    pathlib.Path(args.output).write_text("\n".join(drawn([prompt, *wrapped(rows)])) + "\n")


if __name__ == "__main__":
    main()
