"""Signals: once is a wish, twice is an order."""

import multiprocessing
import signal
import time

import pytest

from ralseg.runtime.signals import Interrupted, Interrupts


def test_outside_of_a_training_a_signal_stops_at_once():
    interrupts = Interrupts()
    with interrupts.handled(), pytest.raises(Interrupted) as stopped:
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert str(stopped.value) == "stopped by SIGTERM"


def test_a_training_may_finish_its_step_once_not_twice(capfd):
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.be_patient(60)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        assert "SIGINT: saving, then leaving" in capfd.readouterr().err
        with pytest.raises(Interrupted) as stopped:
            signal.raise_signal(signal.SIGINT)
        assert stopped.value.exit_code == 130
        interrupts.be_impatient()


def test_patience_ends():
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.be_patient(0.2)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            time.sleep(10)
        interrupts.be_impatient()


def test_signals_return_to_whoever_had_them():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().handled():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_workers_outlive_a_signal_until_the_epoch_ends():
    """SIGTERM must not be passed on to data-loader workers, which the rest of the epoch needs."""
    interrupts = Interrupts()
    context = multiprocessing.get_context("fork")
    worker, cell = (context.Process(target=time.sleep, args=(30,), daemon=daemon) for daemon in (True, False))
    with interrupts.handled():
        worker.start()
        cell.start()
        interrupts.be_patient(60)
        time.sleep(0.2)
        signal.raise_signal(signal.SIGTERM)
        cell.join(10)
        assert cell.exitcode == -signal.SIGTERM
        assert worker.is_alive()
        worker.kill()
        interrupts.be_impatient()
