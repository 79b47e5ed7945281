"""Orders behind FastAPI: requests dispatch and signal, a page is told of every change by server-sent events.

    python examples/web_orders.py                                    the worker, a process of its own
    uvicorn --app-dir examples web_fastapi:app --workers 2           then open http://localhost:8000

FastAPI is async, so each of its processes opens the log with the asynchronous client, on its own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from web_orders import ANSWERS, LOG, NewOrder, Paid, Payment, Receipt, Standing, shop_order, status_for

from gasoline_es import Gasoline

LOOK_AGAIN_S = 0.1


# --- the log, open as long as the process serves ----------------------------------------------------------------------


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with Gasoline.open(LOG) as gasoline:
        app.state.gasoline = gasoline
        yield


def opened(request: Request) -> Gasoline:
    gasoline: Gasoline = request.app.state.gasoline
    return gasoline


Log = Annotated[Gasoline, Depends(opened)]
app = FastAPI(lifespan=lifespan)


# --- requests ---------------------------------------------------------------------------------------------------------


@app.post("/orders", status_code=201)
async def place(gasoline: Log, new: NewOrder) -> Standing:
    handle = await gasoline.dispatch(shop_order, new.order, key=str(new.request))  # durable from here on
    return Standing.of(await handle.get())


@app.post("/orders/{order_id}/payments", status_code=202)
async def pay(gasoline: Log, order_id: UUID, payment: Payment) -> None:
    await gasoline.signal(Paid(cents=payment.cents), to=str(order_id), id=str(payment.request))


@app.get("/orders/{order_id}")
async def show(gasoline: Log, order_id: UUID) -> Standing:
    return Standing.of(await gasoline.handle(str(order_id), shop_order).get())


@app.get("/orders/{order_id}/receipt")
async def receipt(gasoline: Log, order_id: UUID) -> Receipt:
    """Wait for the end of it. Beside other requests: one that waits here holds up nobody."""
    return await gasoline.handle(str(order_id), shop_order).output(timeout=20)


@app.get("/orders/{order_id}/events")
async def events(gasoline: Log, order_id: UUID) -> StreamingResponse:
    """Tell how the order stands, and again whenever that has changed, until it is over."""
    handle = gasoline.handle(str(order_id), shop_order)
    now = Standing.of(await handle.get())  # an unknown id is answered with 404, before the stream begins

    async def changes(now: Standing) -> AsyncGenerator[str]:
        yield f"data: {now.model_dump_json()}\n\n"
        while not now.over:
            await asyncio.sleep(LOOK_AGAIN_S)
            before, now = now, Standing.of(await handle.get())
            if now.version != before.version:
                yield f"data: {now.model_dump_json()}\n\n"

    return StreamingResponse(changes(now), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def refused(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_for(error))


for kind in ANSWERS:
    app.add_exception_handler(kind, refused)


# --- the page ---------------------------------------------------------------------------------------------------------

PAGE = """<!doctype html><title>Orders</title>
<button id="order">Order a lamp for 42.00</button> <button id="pay" disabled>Pay 21.00</button>
<pre id="shown">nothing ordered yet</pre>
<script>
const post = (path, body) => fetch(path, {method: "POST", headers: {"Content-Type": "application/json"},
  body: JSON.stringify({request: crypto.randomUUID(), ...body})});
order.onclick = async () => {
  const made = await (await post("/orders", {item: "lamp", cents: 4200})).json();
  pay.disabled = false;
  pay.onclick = () => post(`/orders/${made.id}/payments`, {cents: 2100});
  const told = new EventSource(`/orders/${made.id}/events`);
  told.onmessage = event => {
    const now = JSON.parse(event.data);
    shown.textContent = JSON.stringify(now, null, 2);
    if (now.over) told.close();
  };
};
</script>"""


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE
