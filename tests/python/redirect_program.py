# SPDX-License-Identifier: Apache-2.0
"""Calls of C functions in every form that CPython has an instruction of its own for, while they are redirected in turns.
Prints "done"; run by test_call_redirect.py."""
import functools
import itertools
import math
import operator
import pickle
import sys
from collections import deque

import redirect_module as redirect

# (function, arguments) of each calling convention. Not len, isinstance and list.append: their instructions compare nothing but the
# object, so they cannot be redirected; no function of PyTorch has one.
FUNCTIONS = [
    (math.sqrt, (4.0,)),  # one argument
    (math.gcd, (12, 18)),  # an array of arguments
    (math.isclose, (1.0, 1.0)),  # with keywords
    (math.hypot, (3.0, 4.0)),
    (operator.index, (3,)),
    (sys.getrecursionlimit, ()),  # none
    (sorted, ([3, 1, 2],)),
    (divmod, (7, 2)),
    (str.upper, ("a",)),  # a method without arguments
    (str.split, ("a b", " ")),
    (str.join, (",", ["a", "b"])),  # with one
    (list.index, ([1, 2], 2)),
    (dict.get, ({1: 2}, 1)),
    (str.replace, ("aa", "a", "b")),
    (bytes.decode, (b"a", "utf-8")),  # with keywords
    (int.bit_length, (5,)),
    (deque.copy, (deque([1]),)),
    (tuple.count, ((1, 1), 1)),
]


def loops(function, arguments):
    """Calls in all forms, often enough for the interpreter to specialize each."""
    results = []
    count, nothing = len(arguments), {}
    for _ in range(60):
        if count == 0:
            results.append(function())
        elif count == 1:
            first, = arguments
            results.append(function(first))
        elif count == 2:
            first, second = arguments
            results.append(function(first, second))
        else:
            results.append(function(*arguments))
        results.append(function(*arguments))
        results.append(function(*arguments, **nothing))
        results.append(functools.partial(function, *arguments)())
        results.extend(itertools.starmap(function, [arguments]))
        results.append(operator.call(function, *arguments) if hasattr(operator, "call") else function(*arguments))
    return results


def method_loop(function, arguments):
    """As methods of their object, by name and bound."""
    own, *rest = arguments
    name = function.__name__
    code = f"def go(own, rest):\n return [own.{name}(*rest) if len(rest) > 1 else own.{name}({'rest[0]' if rest else ''}) for _ in range(60)]"
    scope = {}
    exec(code, scope)
    bound = getattr(own, name)
    return scope["go"](own, rest) + [bound(*rest) for _ in range(60)]


for function, arguments in FUNCTIONS:
    is_method = type(function).__name__ == "method_descriptor"
    wanted = loops(function, arguments)
    wanted_methods = method_loop(function, arguments) if is_method else None
    before = (function, hash(function), repr(function), function.__name__, function.__doc__,
              getattr(function, "__text_signature__", None), pickle.dumps(function))
    original = redirect.original(function)
    calls = []

    def target(*args, original=original, calls=calls, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    kept = getattr(arguments[0], function.__name__) if is_method else None
    for _ in range(5):
        redirect.put(function, target)
        assert loops(function, arguments) == wanted
        assert len(calls) == len(wanted), (function, len(calls), len(wanted))
        if is_method:
            calls.clear()
            assert method_loop(function, arguments) == wanted_methods
            assert len(calls) == len(wanted_methods), (function, len(calls))
            of_redirected = getattr(arguments[0], function.__name__)
        calls.clear()
        assert before == (function, hash(function), repr(function), function.__name__, function.__doc__,
                          getattr(function, "__text_signature__", None), pickle.dumps(function)), function
        assert function == pickle.loads(pickle.dumps(function)) and {function: 1}[function] == 1
        calls.clear()
        redirect.take(function, target)
        assert loops(function, arguments) == wanted and not calls, function
        if is_method:
            assert method_loop(function, arguments) == wanted_methods and not calls
            # What was bound at either time is called.
            assert of_redirected(*arguments[1:]) == wanted[0] == kept(*arguments[1:])
        calls.clear()
    # Keywords, and an error of the target's.
    def fails(*args, **kwargs):
        raise KeyError("the target's")

    redirect.put(function, fails)
    for _ in range(30):
        try:
            function(*arguments)
        except KeyError as error:
            assert error.args == ("the target's",)
        else:
            raise AssertionError(f"{function} raised nothing")
    redirect.take(function, fails)

original = redirect.original(str.encode)
seen = []


def keywords(*args, **kwargs):
    seen.append((args, kwargs))
    return original(*args, **kwargs)


redirect.put(str.encode, keywords)
for _ in range(60):
    assert "a".encode(encoding="utf-8", errors="strict") == b"a"
redirect.take(str.encode, keywords)
assert seen == [(("a",), {"encoding": "utf-8", "errors": "strict"})] * 60
# A redirection that is put while its function runs.
inner = []


def outer(*args):
    redirect.put(math.sqrt, innermost)
    return redirect.original(math.sqrt)(*args)


def innermost(*args):
    inner.append(args)
    return redirect.original(math.sqrt)(*args)


redirect.put(math.sqrt, outer)
assert math.sqrt(9.0) == 3.0 and math.sqrt(16.0) == 4.0 and inner == [(16.0,)]
redirect.take(math.sqrt, outer)
redirect.take(math.sqrt, innermost)
assert math.sqrt(9.0) == 3.0 and len(inner) == 1
# Many that are put together, also over and under one that is put by itself.
called = []


def counting(function):
    original = redirect.original(function)

    def target(*args, **kwargs):
        called.append(function)
        return original(*args, **kwargs)

    return target


for function, _ in FUNCTIONS:
    redirect.add(function, counting(function))
alone = []


def own(*args):
    alone.append(args)
    return redirect.original(math.sqrt)(*args)


def call_all():
    called.clear()
    alone.clear()
    bound = "a".upper
    for function, arguments in FUNCTIONS:
        loops(function, arguments)
    return len(set(called)), len(alone), bound


_, _, bound = call_all()
assert not called
for _ in range(3):
    redirect.put_all()
    assert call_all()[:2] == (len(FUNCTIONS), 0)
    bound_inside = call_all()[2]
    redirect.put(math.sqrt, own)
    assert call_all()[:2] == (len(FUNCTIONS) - 1, 360)
    redirect.take_all()
    assert call_all()[:2] == (0, 360)
    redirect.put_all()
    assert call_all()[:2] == (len(FUNCTIONS), 0)
    redirect.take(math.sqrt, own)
    assert call_all()[:2] == (len(FUNCTIONS), 0)
    redirect.take_all()
    assert call_all()[:2] == (0, 0) and bound() == bound_inside() == "A" and not called
    redirect.put_all()
    called.clear()
    assert bound_inside() == "A" and called == [str.upper]
    redirect.take_all()
print("done", sys.version.split()[0])
