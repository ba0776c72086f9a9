"""Read TOML site profiles on Pythons without ``tomllib`` (3.9 and 3.10, which login nodes often have).

It reads a strict subset: tables, strings on one line, whole numbers, decimals, booleans, arrays of these, and comments.
Everything that it accepts means the same in TOML 1.0. It refuses the rest and names the line.
"""

from __future__ import annotations

import re

try:
    import tomllib
except ModuleNotFoundError:
    tomllib = None  # type: ignore[assignment]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[+-]?(0|[1-9](_?[0-9])*)(\.[0-9](_?[0-9])*)?([eE][+-]?[0-9]+)?(?![0-9A-Za-z_.:-])")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


def loads(text: str) -> dict[str, object]:
    """The document. Raises ValueError with the line if it is no TOML, or without tomllib outside the subset."""
    return tomllib.loads(text) if tomllib is not None else parse_subset(text)


def parse_subset(text: str) -> dict[str, object]:
    """The document, read by the subset's reader. Raises ValueError with the line."""
    return _Reader(text.replace("\r\n", "\n")).document()


class _Reader:
    """One pass over the text; ``at`` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> dict[str, object]:
        root: dict[str, object] = {}
        table, headers = root, set()
        while self._skip_lines():
            if self._take("["):
                path = self._header()
                if path in headers:
                    raise self._error(f"the table [{'.'.join(path)}] is there twice")
                headers.add(path)
                table = self._descend(root, path)
            else:
                key = self._key()
                self._need("=")
                if key in table:
                    raise self._error(f"the key {key!r} is there twice")
                self._blanks()
                table[key] = self._value()
            self._line_end()
        return root

    def _header(self) -> tuple[str, ...]:
        if self._peek() == "[":
            raise self._error("arrays of tables are outside the subset")
        path = [self._key()]
        while self._take("."):
            path.append(self._key())
        self._need("]")
        return tuple(path)

    def _descend(self, root: dict[str, object], path: tuple[str, ...]) -> dict[str, object]:
        table = root
        for name in path:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise self._error(f"{name!r} is already a value and cannot be a table")
            table = inner
        return table

    def _key(self) -> str:
        self._blanks()
        if self._peek() in ('"', "'"):
            key = self._string()
        else:
            found = _BARE_KEY.match(self.text, self.at)
            if not found:
                raise self._error("a key is missing here")
            self.at, key = found.end(), found.group()
        self._blanks()
        return key

    def _value(self) -> object:
        if self._peek() in ('"', "'"):
            return self._string()
        if self._take("["):
            return self._array()
        for word, value in (("true", True), ("false", False)):
            if re.compile(rf"{word}(?![\w-])").match(self.text, self.at):
                self.at += len(word)
                return value
        found = _NUMBER.match(self.text, self.at)
        if not found:
            raise self._error("a value must be a string in quotes, a number, true, false or an array of these")
        self.at = found.end()
        digits = found.group().replace("_", "")
        return float(digits) if found.group(3) or found.group(5) else int(digits)

    def _array(self) -> list[object]:
        values: list[object] = []
        while self._skip_lines() and not self._take("]"):
            values.append(self._value())
            self._skip_lines()
            if not self._take(",") and self._peek() != "]":
                raise self._error("an array needs a comma here, or ]")
        if self.text[self.at - 1 : self.at] != "]":
            raise self._error("an array is not closed with ]")
        return values

    def _string(self) -> str:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            raise self._error("strings over several lines are outside the subset")
        self.at += 1
        characters: list[str] = []
        while True:
            character = self._peek()
            if character in ("", "\n"):
                raise self._error("a string is not closed on its line")
            if character != "\t" and (character < " " or character == "\x7f"):
                raise self._error("a string must not hold control characters")
            self.at += 1
            if character == quote:
                return "".join(characters)
            characters.append(self._escape() if character == "\\" and quote == '"' else character)

    def _escape(self) -> str:
        letter = self._peek()
        self.at += 1
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        digits = {"u": 4, "U": 8}.get(letter, 0)
        code = self.text[self.at : self.at + digits]
        if not digits or not re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code):
            raise self._error(f"\\{letter} is no escape of TOML")
        self.at += digits
        number = int(code, 16)
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            raise self._error(f"\\{letter}{code} is no character")
        return chr(number)

    # Moving on

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, character: str) -> bool:
        found = self._peek() == character
        self.at += found
        return found

    def _need(self, character: str) -> None:
        if not self._take(character):
            raise self._error(f"{character!r} is missing here")

    def _blanks(self) -> None:
        while self._peek() in (" ", "\t"):
            self.at += 1

    def _skip_lines(self) -> bool:
        """Go over blanks, ends of lines and comments. False at the end of the text."""
        while True:
            self._blanks()
            if self._peek() == "#":
                self._comment()
            elif not self._take("\n"):
                return self.at < len(self.text)

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = end if end >= 0 else len(self.text)

    def _line_end(self) -> None:
        self._blanks()
        if self._peek() == "#":
            self._comment()
        if self._peek() not in ("", "\n"):
            raise self._error("the line continues after its value")

    def _error(self, message: str) -> ValueError:
        return ValueError(f"{message} (line {self.text.count(chr(10), 0, self.at) + 1})")
