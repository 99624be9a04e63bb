// The page's own API, by paths relative to the page: so a proxy's prefix does no harm.

const query = new URLSearchParams(window.location.search);

/** The run that Airflow's tab stands on; nulls on the page of its own. */
export const run = { dag_id: query.get("dag_id"), run_id: query.get("run_id") };

function path(name, parameters) {
  const every = Object.entries({ ...run, ...parameters }).filter(([, value]) => value !== null);
  return `api/${name}?${new URLSearchParams(every)}`;
}

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const detail = body?.detail;
  throw new Error(typeof detail === "string" ? detail : `the api-server answered ${response.status}`);
}

export async function get(name, parameters = {}) {
  return answer(await fetch(path(name, parameters), { headers: { Accept: "application/json" } }));
}

export async function post(name, body) {
  return answer(
    await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Kafka-EOS": "page" },
      body: JSON.stringify({ ...run, ...body }),
    }),
  );
}
