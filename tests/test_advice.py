"""What the libraries say is kept off the terminal, handed over, and the libraries are left as they were."""

import logging
import sys
import warnings

import pytest
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from probe.advice import collected_advice, without_bars


def settings():
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub", "peft", "accelerate")]
    handlers = [(logger.handlers[:], logger.propagate) for logger in loggers]
    return handlers, are_progress_bars_disabled(), transformers.utils.logging.is_progress_bar_enabled()


def test_warnings_and_log_lines_arrive_once_each_as_single_lines(capfd):
    with collected_advice() as lines:
        for _ in range(2):
            logging.getLogger("transformers.some.module").warning("first\n  line of %s", "two")
        logging.getLogger("peft").error("an error")
        logging.getLogger("transformers").info("chatter")
        warnings.warn("be warned", UserWarning, stacklevel=1)
        warnings.warn("for developers", FutureWarning, stacklevel=1)
    assert lines == ["first line of two", "an error", "be warned"]
    assert capfd.readouterr() == ("", "")


def test_the_table_of_weights_is_left_to_the_loader_and_long_lines_are_cut():
    with collected_advice() as lines:
        logging.getLogger("transformers").warning("BertModel LOAD REPORT from: x")
        logging.getLogger("transformers").warning("x" * 1000)
    (line,) = lines
    assert len(line) == 240 and line.endswith("…")


def test_the_libraries_are_left_as_they_were_even_after_an_error():
    before = settings()
    with pytest.raises(ValueError, match="boom"), collected_advice():
        assert settings() != before
        raise ValueError("boom")
    assert settings() == before


def test_stubborn_bars_are_drawn_nowhere(capfd):
    with without_bars():
        sys.stderr.write("50%\n")
    with without_bars(stubborn=False):
        sys.stderr.write("100%\n")
    assert capfd.readouterr().err == "100%\n"
