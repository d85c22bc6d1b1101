"""Wrap lines of docstrings and comments that became too long when names in them did."""

import ast
import io
import re
import tokenize
from pathlib import Path

WIDTH = 110


def wrap(path: Path) -> None:
    """Wrap the lines of one file. The rest of a line goes to the beginning of the next one."""
    text = path.read_text(encoding="utf-8")
    if all(len(line) <= WIDTH for line in text.splitlines()):
        return
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            end = (node.end_lineno or 0) - 1
            own = lines[node.lineno - 1 : end + 1]
            if lines[end].endswith("# fmt: skip") and max(map(len, own)) > WIDTH:
                lines[end] = lines[end].removesuffix("# fmt: skip").rstrip()
    text = "\n".join(lines) + "\n"
    for first, last, prefix in reversed(prose(text)):
        lines[first:last] = flow(lines[first:last], prefix)
    lines = [part for line in lines for part in code(line)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def code(line: str) -> list[str]:
    """Wrap a row of a table of strings, and move a comment that ends a line to a line before it."""
    if len(line) <= WIDTH:
        return [line]
    if match := re.fullmatch(r'( +)("[^"]*": )("[^"]*"),', line):
        return [f"{match[1]}{match[2]}(", f"{match[1]}    {match[3]}", f"{match[1]}),"]
    if re.search(r"# (type:|noqa|fmt:|mypy:)", line):
        return [line]
    if match := re.fullmatch(r"( *)([^\"'#]+?)  # (.*)", line):
        return [f"{match[1]}# {match[3]}", f"{match[1]}{match[2]}"]
    return [line]


def prose(text: str) -> list[tuple[int, int, str]]:
    """Return ranges of lines: docstrings, strings after an assignment, and comments on lines of their own."""
    found = []
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.append((value.lineno - 1, value.end_lineno or 0, ""))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            at = token.start[0] - 1
            if found and found[-1][2] == "#" and found[-1][1] == at:
                found[-1] = (found[-1][0], at + 1, "#")
            else:
                found.append((at, at + 1, "#"))
    return sorted(found)


def flow(lines: list[str], prefix: str) -> list[str]:
    """Wrap one docstring or comment."""
    made: list[str] = []
    waiting = list(lines)
    while waiting:
        line = waiting.pop(0)
        if len(line) <= WIDTH or line.endswith("---"):
            made.append(line[:WIDTH])
            continue
        indent = line[: len(line) - len(line.lstrip())]
        body = line.lstrip()
        hang = indent
        if prefix:
            indent += "# "
            body = body.removeprefix("#").lstrip()
            hang = indent
        elif body.startswith(("- ", "* ")):
            hang = indent + "  "
        cut = (indent + body).rfind(" ", len(indent) + 20, WIDTH + 1)
        if cut < 0:
            made.append(line)
            continue
        whole = indent + body
        made.append(whole[:cut].rstrip())
        rest = whole[cut:].strip()
        following = waiting[0] if waiting else ""
        plain = following.strip().removeprefix("#").strip() if prefix else following.strip()
        ends = rest.endswith('"""')
        same = following.startswith(hang) and following[len(hang) : len(hang) + 1] not in ("", " ")
        if (
            plain
            and same
            and not ends
            and not plain.startswith(("- ", "* ", '"""', "|", "(", "1", "2", "3"))
        ):
            waiting[0] = f"{hang}{rest} {plain}"
        else:
            waiting.insert(0, hang + rest)
    return made
