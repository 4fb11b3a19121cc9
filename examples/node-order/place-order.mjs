// Places an order and the message about it in one transaction: both are committed, or neither is.
//
//   DATABASE_URL=postgres://... node place-order.mjs 17 4900
//
// Prints what became of the message. Running it again with the same order changes nothing.
import pg from 'pg';

export async function placeOrder(client, order) {
  await client.query('begin');
  try {
    await client.query('insert into orders (id, cents) values ($1, $2) on conflict do nothing', [order.id, order.cents]);
    const { rows } = await client.query('select * from sluice_enqueue($1::jsonb)', [
      JSON.stringify([
        {
          topic: 'orders',
          event_type: 'order.placed',
          aggregate_type: 'order',
          aggregate_id: order.id,
          payload: { order_id: order.id, cents: order.cents },
          idempotency_key: `order.placed:${order.id}`,
        },
      ]),
    ]);
    await client.query('commit');
    return rows;
  } catch (err) {
    await client.query('rollback').catch(() => {}); // the connection may be what broke
    throw err;
  }
}

if (import.meta.filename === process.argv[1]) {
  const [id, cents] = process.argv.slice(2);
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    console.log(JSON.stringify(await placeOrder(client, { id, cents: Number(cents) })));
  } finally {
    await client.end();
  }
}
