"""Ctrl-C and SIGTERM, which Python sees to between two lines of Python.

Where TensorFlow compiles or trains, the next line is minutes away. What C notes of a signal wakes
up a thread at once.
"""

import contextlib
import os
import signal
import threading

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def handled(stop):
    """Has a thread call `stop` when this process is interrupted, or asked to end, in the block.

    A signal that is ignored, as Ctrl-C is in the background of a script, stays so; one for which
    somebody else has a handler by then is theirs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, _note) for each in heard}
    noted_in = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_wait, args=(reading, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(noted_in)
        for each, handler in before.items():
            if signal.getsignal(each) is _note:
                signal.signal(each, handler)
        os.write(writing, b"\0")
        thread.join()
        os.close(reading)
        os.close(writing)


def _note(number, frame):
    """The thread sees to it."""


def _wait(reading, stop):
    while number := os.read(reading, 1)[0]:
        if signal.getsignal(number) is _note:
            stop()
