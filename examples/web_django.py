"""Orders behind Django, in one file: requests dispatch and signal, a page asks every half second how the order stands.

    python examples/web_orders.py                                                   the worker, a process of its own
    gunicorn --pythonpath examples --workers 2 'web_django:create_application()'         then open http://localhost:8000

In a project of several files, ``shop_log`` stands in a module of its own, and ``wsgi.py`` calls it once at the end: every
process that serves opens the log when it starts, and a management command when it first uses it.
"""

# Django has no types of its own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST
from web_orders import ANSWERS, LOG, NewOrder, Paid, Payment, Standing, shop_order, status_for

from gasoline_es import Gasoline, SyncGasoline

# --- the log, open as long as the process serves ----------------------------------------------------------------------


@functools.cache
def shop_log() -> SyncGasoline:
    gasoline = Gasoline.open_sync(LOG)
    atexit.register(gasoline.close)
    return gasoline


# --- requests ---------------------------------------------------------------------------------------------------------


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    new = NewOrder.model_validate(request.POST.dict())
    handle = shop_log().dispatch(shop_order, new.order, key=str(new.request))  # durable from here on
    return JsonResponse(Standing.of(handle.get()).model_dump(), status=201)


@require_POST
def pay(request: HttpRequest, order_id: UUID) -> HttpResponse:
    payment = Payment.model_validate(request.POST.dict())
    shop_log().signal(Paid(cents=payment.cents), to=str(order_id), id=str(payment.request))
    return HttpResponse(status=202)


@require_GET
def show(request: HttpRequest, order_id: UUID) -> HttpResponse:
    return JsonResponse(Standing.of(shop_log().handle(str(order_id), shop_order).get()).model_dump())


@require_GET
def receipt(request: HttpRequest, order_id: UUID) -> HttpResponse:
    """Wait for the end of it: this keeps a thread of the server, or with a `sync` worker all of that process."""
    return JsonResponse(shop_log().handle(str(order_id), shop_order).output(timeout=20).model_dump())


@require_GET
@ensure_csrf_cookie
def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse(PAGE)


class Refusals:
    """A middleware that answers what the log refuses."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, tuple(ANSWERS)):
            return None
        return JsonResponse({"error": str(error)}, status=status_for(error))


urlpatterns = [
    path("", page),
    path("orders", place),
    path("orders/<uuid:order_id>", show),
    path("orders/<uuid:order_id>/payments", pay),
    path("orders/<uuid:order_id>/receipt", receipt),
]


# --- the page ---------------------------------------------------------------------------------------------------------

PAGE = """<!doctype html><title>Orders</title>
<button id="order">Order a lamp for 42.00</button> <button id="pay" disabled>Pay 21.00</button>
<pre id="shown">nothing ordered yet</pre>
<script>
const token = document.cookie.match(/csrftoken=([^;]+)/)[1];
const post = (path, body) => fetch(path, {method: "POST", headers: {"X-CSRFToken": token},
  body: new URLSearchParams({request: crypto.randomUUID(), ...body})});
order.onclick = async () => {
  const made = await (await post("/orders", {item: "lamp", cents: 4200})).json();
  pay.disabled = false;
  pay.onclick = () => post(`/orders/${made.id}/payments`, {cents: 2100});
  const asking = setInterval(async () => {
    const now = await (await fetch(`/orders/${made.id}`)).json();
    shown.textContent = JSON.stringify(now, null, 2);
    if (now.over) clearInterval(asking);
  }, 500);
};
</script>"""


# --- run --------------------------------------------------------------------------------------------------------------


def create_application() -> Any:
    """Called once in each process that serves, after gunicorn has forked it."""
    settings.configure(
        ALLOWED_HOSTS=["localhost", "127.0.0.1"],
        MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware", f"{__name__}.Refusals"],
        ROOT_URLCONF=__name__,
        SECRET_KEY=os.environ.get("SECRET_KEY") or os.urandom(32).hex(),
    )
    shop_log()
    return get_wsgi_application()
