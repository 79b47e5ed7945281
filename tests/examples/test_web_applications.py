"""The web applications of examples/: real servers, the worker a process of its own, all on one log."""

from __future__ import annotations

import os
import re
import signal
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gasoline_es import Gasoline
from tests.examples.web_runs import PATIENCE_S, SERVERS, Browser, Process, browser, server, worker

LAMP = {"item": "lamp", "cents": 4200}


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def served_by(process: Process) -> set[int]:
    """The processes of a gunicorn that have answered requests."""
    return {int(pid) for pid in re.findall(r"served by <(\d+)>", process.written)}


def place(web: Browser) -> str:
    order_id: str = web.post("/orders", LAMP).raise_for_status().json()["id"]
    return order_id


@pytest.mark.parametrize("kind", SERVERS)
def test_order_is_placed_paid_and_shipped(kind: str, tmp_path: Path, tmp_log_url: str) -> None:
    """The request for the receipt keeps one process of gunicorn, so the payments that end it are taken by the other."""
    with (
        worker(tmp_path, tmp_log_url) as working,
        server(kind, tmp_path, tmp_log_url) as (serving, address),
        browser(kind, address) as web,
        browser(kind, address) as other,
        ThreadPoolExecutor() as pool,
    ):
        assert "<title>Orders</title>" in web.page
        request, payment = str(uuid.uuid4()), str(uuid.uuid4())
        placed = web.post("/orders", LAMP, request)
        assert placed.status_code == 201
        order_id = placed.json()["id"]
        assert web.post("/orders", LAMP, request).json()["id"] == order_id  # sent twice, there once
        assert web.post("/orders", {**LAMP, "item": "desk"}, request).status_code == 409
        waiting = pool.submit(other.get, f"/orders/{order_id}/receipt")
        for _ in range(2):  # sent twice, paid once
            assert web.post(f"/orders/{order_id}/payments", {"cents": 2100}, payment).status_code == 202
        half = {"stage": "waiting for payment", "paid_cents": 2100}
        until(lambda: web.get(f"/orders/{order_id}").json()["state"] == half)
        assert web.post(f"/orders/{order_id}/payments", {"cents": 2100}).status_code == 202
        receipt = waiting.result(PATIENCE_S).json()
        assert (receipt["item"], receipt["paid_cents"]) == ("lamp", 4200)
        shown = web.get(f"/orders/{order_id}").json()
        assert (shown["status"], shown["over"], shown["output"]) == ("complete", True, receipt)
        assert shown["state"] == {"stage": "shipped", "paid_cents": 4200}
        if kind != "fastapi":
            until(lambda: len(served_by(serving)) == 2)
        serving.stop()
        working.stop()
    with Gasoline.open_sync(tmp_log_url, readonly=True) as reader:
        assert [info.id for info in reader.list()] == [order_id]


@pytest.mark.parametrize("kind", SERVERS)
def test_what_cannot_be_is_answered_with_why(kind: str, tmp_path: Path, tmp_log_url: str) -> None:
    """Without a worker: orders are taken all the same, and wait for one."""
    with server(kind, tmp_path, tmp_log_url) as (serving, address), browser(kind, address) as web:
        order_id = place(web)
        assert web.get(f"/orders/{order_id}").json()["status"] == "running"
        assert web.post("/orders", {"item": "lamp", "cents": 0}).status_code == 422
        assert web.post(f"/orders/{order_id}/payments", {"cents": -1}).status_code == 422
        nobody = uuid.uuid4()
        missing = web.get(f"/orders/{nobody}")
        assert missing.status_code == 404
        assert str(nobody) in missing.json()["error"]
        assert web.post(f"/orders/{nobody}/payments", {"cents": 1}).status_code == 404
        assert web.get(f"/orders/{nobody}/receipt").status_code == 404
        serving.stop()


def test_page_is_told_of_every_change_as_it_happens(tmp_path: Path, tmp_log_url: str) -> None:
    with (
        worker(tmp_path, tmp_log_url),
        server("fastapi", tmp_path, tmp_log_url) as (serving, address),
        browser("fastapi", address) as web,
        browser("fastapi", address) as other,
    ):
        order_id = place(web)
        told = other.events(f"/orders/{order_id}/events")
        assert next(told)["over"] is False
        web.post(f"/orders/{order_id}/payments", {"cents": 4000}).raise_for_status()
        while (now := next(told))["state"] is None:
            assert not now["over"]
        assert now["state"] == {"stage": "waiting for payment", "paid_cents": 4000}
        web.post(f"/orders/{order_id}/payments", {"cents": 200}).raise_for_status()
        rest = list(told)
        assert [one["version"] for one in rest] == sorted({one["version"] for one in rest})
        assert rest[-1]["over"]
        assert rest[-1]["output"]["paid_cents"] == 4200
        assert web.get(f"/orders/{uuid.uuid4()}/events").status_code == 404
        serving.stop()


def test_processes_are_killed_and_orders_go_on(tmp_path: Path, tmp_log_url: str) -> None:
    """A killed worker is replaced by another, a killed process of gunicorn by gunicorn; every order gets its receipt."""
    with server("flask", tmp_path, tmp_log_url) as (serving, address), browser("flask", address) as web:
        with worker(tmp_path, tmp_log_url, "first"):
            orders = [place(web) for _ in range(5)]
            until(lambda: len(served_by(serving)) > 0)
            os.kill(served_by(serving).pop(), signal.SIGKILL)
            for order_id in orders:
                web.post(f"/orders/{order_id}/payments", {"cents": 2100}).raise_for_status()
        for order_id in orders:  # nobody works, and the payments are taken
            web.post(f"/orders/{order_id}/payments", {"cents": 2100}).raise_for_status()
        with worker(tmp_path, tmp_log_url, "second") as working:
            for order_id in orders:
                assert web.get(f"/orders/{order_id}/receipt").raise_for_status().json()["paid_cents"] == 4200
            working.stop()
        serving.stop()
