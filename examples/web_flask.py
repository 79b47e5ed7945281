"""Orders behind Flask: requests dispatch and signal, a page asks every half second how the order stands.

    python examples/web_orders.py                                                   the worker, a process of its own
    gunicorn --pythonpath examples --workers 2 'web_flask:create_app()'                  then open http://localhost:8000

Flask is not async, so each of its processes opens the log with the client that blocks.
"""

from __future__ import annotations

import atexit
from uuid import UUID

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from web_orders import ANSWERS, LOG, NewOrder, Paid, Payment, Standing, shop_order, status_for

from gasoline_es import Gasoline


def create_app() -> Flask:
    """Called once in each process that serves, after gunicorn has forked it: that is where the log is opened."""
    app = Flask(__name__)
    gasoline = Gasoline.open_sync(LOG)
    atexit.register(gasoline.close)

    @app.post("/orders")
    def place() -> ResponseReturnValue:
        new = NewOrder.model_validate(request.form.to_dict())
        handle = gasoline.dispatch(shop_order, new.order, key=str(new.request))  # durable from here on
        return jsonify(Standing.of(handle.get()).model_dump()), 201

    @app.post("/orders/<uuid:order_id>/payments")
    def pay(order_id: UUID) -> ResponseReturnValue:
        payment = Payment.model_validate(request.form.to_dict())
        gasoline.signal(Paid(cents=payment.cents), to=str(order_id), id=str(payment.request))
        return "", 202

    @app.get("/orders/<uuid:order_id>")
    def show(order_id: UUID) -> ResponseReturnValue:
        return jsonify(Standing.of(gasoline.handle(str(order_id), shop_order).get()).model_dump())

    @app.get("/orders/<uuid:order_id>/receipt")
    def receipt(order_id: UUID) -> ResponseReturnValue:
        """Wait for the end of it: this keeps a thread of the server, or with a `sync` worker all of that process."""
        return jsonify(gasoline.handle(str(order_id), shop_order).output(timeout=20).model_dump())

    @app.get("/")
    def page() -> ResponseReturnValue:
        return PAGE

    def refused(error: Exception) -> ResponseReturnValue:
        return jsonify({"error": str(error)}), status_for(error)

    for kind in ANSWERS:
        app.register_error_handler(kind, refused)
    return app


PAGE = """<!doctype html><title>Orders</title>
<button id="order">Order a lamp for 42.00</button> <button id="pay" disabled>Pay 21.00</button>
<pre id="shown">nothing ordered yet</pre>
<script>
const post = (path, body) => fetch(path, {method: "POST",
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
