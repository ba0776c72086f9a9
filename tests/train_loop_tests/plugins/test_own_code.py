"""``FILE.py:FUNCTION``: found by any path, and its errors told from ours."""

import random
import sys
from pathlib import Path

import pytest
import torch
from ray.exceptions import RayError

from bigbatch.train_loop.config import ConfigError
from bigbatch.train_loop.config.own_names import absolute, code_fingerprint
from bigbatch.train_loop.config.rules import is_own, shown_name
from bigbatch.train_loop.errors import OwnCodeError
from bigbatch.train_loop.plugins.registry import check_call, load_function, users_code, whose_error

TEXT = "def answer(x=1):\n    return 42\n"


def _written(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _answer(word: str) -> object:
    return load_function("loss", word)()


def test_what_names_a_file_and_what_does_not():
    assert is_own("net.py") and is_own("a b/net.py:unet") and is_own("../net.py:unet")
    assert not is_own("resnet50") and not is_own("timm/vit.tiny") and not is_own("")
    assert shown_name("/long/way/net.py:unet") == "net.py:unet"
    assert shown_name("timm/resnet18") == "timm/resnet18"


@pytest.mark.parametrize("folder", ["plain", "with spaces in it", "ünï"])
def test_a_file_is_found_by_absolute_relative_and_home_paths(tmp_path, monkeypatch, folder):
    _written(tmp_path / folder / "net.py")
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = f"{tmp_path / folder / 'net.py'}:answer"
    for word in (expected, "net.py:answer", f"../{folder}/net.py:answer", f"~/{folder}/net.py:answer"):
        assert absolute("loss", word) == expected
        assert _answer(word) == 42


@pytest.mark.parametrize("name", ["torch.py", "tune.py", "random.py", "bigbatch.py"])
def test_a_file_with_a_librarys_name_hides_nothing(tmp_path, name):
    file = _written(tmp_path / name, f"import torch, random\n{TEXT}")
    before = sys.modules.get(Path(name).stem)
    assert _answer(f"{file}:answer") == 42
    assert hasattr(torch, "Tensor") and hasattr(random, "random")
    assert before is None or sys.modules[Path(name).stem] is before
    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1


def test_a_function_may_import_a_file_beside_it_when_it_is_called(tmp_path):
    _written(tmp_path / "lazily_beside.py", "value = 5\n")
    file = _written(tmp_path / "net.py", "def answer():\n    from lazily_beside import value\n    return value\n")
    assert [_answer(f"{file}:answer") for _ in range(2)] == [5, 5]


def test_two_files_of_one_name_and_an_edited_file_are_told_apart(tmp_path):
    one = _written(tmp_path / "a" / "net.py")
    two = _written(tmp_path / "b" / "net.py", TEXT.replace("42", "7"))
    assert _answer(f"{one}:answer") == 42 and _answer(f"{two}:answer") == 7
    before = code_fingerprint("loss", f"{one}:answer")
    _written(one, TEXT.replace("42", "43"))
    assert _answer(f"{one}:answer") == 43
    assert code_fingerprint("loss", f"{one}:answer") != before


def test_files_beside_two_users_files_may_have_one_name(tmp_path):
    for folder, value in (("a", 1), ("b", 2)):
        _written(tmp_path / folder / "beside.py", f"value = {value}\n")
        _written(tmp_path / folder / "net.py", "from beside import value\ndef answer():\n    return value\n")
    assert [_answer(f"{tmp_path / folder / 'net.py'}:answer") for folder in "aba"] == [1, 2, 1]


def test_a_file_runs_once_in_a_process(tmp_path):
    file = _written(tmp_path / "net.py", "import random\nvalue = random.random()\ndef answer():\n    return value\n")
    assert _answer(f"{file}:answer") == _answer(f"{file}:answer")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("net.py", "Write net.py:FUNCTION."),
        ("net.py:", "Write net.py:FUNCTION."),
        ("elsewhere/away.py:answer", "Check the path."),
        ("net.py:answr", "Did you mean 'answer'?"),
        ("net.py:quite_other", "Functions there: answer."),
        ("net.py:number", "Write `def number`."),
    ],
)
def test_a_word_that_names_nothing_is_refused_in_one_line(tmp_path, monkeypatch, word, words):
    _written(tmp_path / "net.py", TEXT + "number = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_function("loss", word)
    assert "\n" not in str(refused.value) and str(refused.value).startswith("loss must name")
    assert str(refused.value).endswith(words)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("async def answer(workload):\n    return 42\n", ["workload"]),
        # A call of it runs nothing: the first trials would end without a report.
        ("def answer(config, report):\n    yield 0.5\n", ["config", "report"]),
    ],
    ids=["async", "generator"],
)
def test_what_is_no_plain_function_is_refused_in_one_line(tmp_path, text, arguments):
    word = f"{_written(tmp_path / 'net.py', text)}:answer"
    with pytest.raises(ConfigError, match="must name a function without async and yield") as refused:
        check_call("--model", word, load_function("--model", word), arguments, {})
    assert "\n" not in str(refused.value)


def test_a_wrong_signature_is_refused_with_both(tmp_path):
    file = _written(tmp_path / "net.py")
    function = load_function("loss", f"{file}:answer")
    check_call("loss", "w", function, (), {"x": 3})
    with pytest.raises(ConfigError, match=r"a function of \(outputs, gamma\); got 'w'.*a function of \(x=1\)"):
        check_call("loss", "w", function, ("outputs",), {"gamma": 2})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def answer(:\n", "SyntaxError"),
        ("import sys\nsys.exit(3)\n", "the code ends the process: SystemExit(3)"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    ],
)
def test_a_file_that_does_not_run_tells_its_own_traceback(tmp_path, text, words):
    file = _written(tmp_path / "net.py", text)
    with pytest.raises(OwnCodeError) as failed:
        load_function("loss", f"{file}:answer")
    assert words in str(failed.value) and f'"{file}"' in str(failed.value)
    assert "own/code.py" not in str(failed.value)
    _written(file)
    assert _answer(f"{file}:answer") == 42  # the next try begins anew


def test_an_error_deep_in_the_users_code_shows_their_frames_alone(tmp_path):
    _written(tmp_path / "beside.py", "import json\ndef parse(text):\n    return json.loads(text)\n")
    file = _written(tmp_path / "net.py", "import beside\ndef answer():\n    return beside.parse('{')\n")
    function = load_function("loss", f"{file}:answer")
    with pytest.raises(OwnCodeError) as failed, users_code("loss", f"{file}:answer"):
        function()
    lines = str(failed.value).splitlines()
    assert lines[0].startswith(f"the code of loss={file}:answer raised JSONDecodeError")
    assert f'  File "{file}", line 3, in answer' in lines
    assert f'  File "{tmp_path / "beside.py"}", line 3, in parse' in lines
    assert not any("train_loop" in line or "test_own_code" in line for line in lines)


def test_code_that_ends_the_process_is_an_error_with_its_traceback(tmp_path):
    """argparse does, when it meets arguments of ours; a worker would die of it without file and line."""
    text = "import argparse\ndef answer():\n    argparse.ArgumentParser().parse_args(['--unknown'])\n"
    file = _written(tmp_path / "net.py", text)
    function = load_function("loss", f"{file}:answer")
    word = f"{file}:answer"
    for guard in (users_code("loss", word), whose_error({"loss": word})):
        with pytest.raises(OwnCodeError) as failed, guard:
            function()
        lines = str(failed.value).splitlines()
        assert lines[1:3] == ["Traceback (most recent call last):", f'  File "{file}", line 3, in answer']
        assert lines[-1] == "RuntimeError: the code ends the process: SystemExit(2)"


def test_an_iterator_at_its_end_is_an_error_too(tmp_path):
    """`next()` in a data set: a StopIteration that passes would end a loop of ours."""
    file = _written(tmp_path / "net.py", "def answer():\n    return next(iter(()))\n")
    word = f"{file}:answer"
    for guard in (users_code("loss", word), whose_error({"loss": word})):
        with pytest.raises(OwnCodeError, match="raised StopIteration"), guard:
            load_function("loss", word)()


def test_refusals_and_interrupts_pass_through_users_code_unchanged():
    for error in (ConfigError("a line"), OwnCodeError("theirs"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as passed, users_code("loss", "net.py:f"):
            raise error
        assert passed.value is error


@pytest.mark.parametrize(
    ("raised", "passes"),
    [
        ("RuntimeError('[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:10640')", True),
        ("RuntimeError('NCCL error in: x.cpp:1, ncclRemoteError: A call failed possibly due to a remote exit')", True),
        ("torch.distributed.DistNetworkError('failed to recv, got 0 bytes')", True),
        ("ray.exceptions.ActorDiedError()", True),
        ("ray.exceptions.NodeDiedError('the node is gone')", True),
        ("ray.exceptions.RayTaskError('f', '', ray.exceptions.ActorDiedError()).as_instanceof_cause()", True),
        ("ValueError('of a library around a report') from ray.exceptions.ActorDiedError()", True),
        ("ray.exceptions.RayTaskError('f', '', ValueError('shapes')).as_instanceof_cause()", False),
        ("ray.exceptions.GetTimeoutError('a task of the user')", False),
        ("RuntimeError('shapes do not fit')", False),
        ("RuntimeError('Connection closed by peer')", False),
    ],
)
def test_a_process_that_lost_another_is_not_the_one_with_the_error(tmp_path, raised, passes):
    """The other has the cause. If its process was killed, the workers start again, which own errors do not."""
    file = _written(tmp_path / "net.py", f"import ray, torch.distributed\n\ndef answer():\n    raise {raised}\n")
    word = f"{file}:answer"
    for guard in (users_code("loss", word), whose_error({"loss": word})):
        with pytest.raises((RuntimeError, ValueError, RayError)) as failed, guard:
            load_function("loss", word)()
        assert isinstance(failed.value, OwnCodeError) != passes
