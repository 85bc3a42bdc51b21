// Drives openapi-fetch with the types that openapi-typescript generates.

import { randomUUID } from "node:crypto";
import { argv } from "node:process";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

type Schemas = components["schemas"];

async function main(url: string, token: string, project: string): Promise<object> {
  // Without a media type, answers that are also a table for people would be taken for text.
  const client = createClient<paths, "application/json" | "application/problem+json">({
    baseUrl: url,
    headers: { Authorization: `Bearer ${token}` },
  });

  async function index(text: string, sourceRevision: string): Promise<void> {
    const source = { sourceId: "a.md", sourceRevision, class: "documents", project, text } as const;
    await client.PUT("/sources", { body: { sources: [source] } });
  }

  function request(...pins: Schemas["PinBody"][]): Schemas["CreateSnapshotBody"] {
    return {
      runId: randomUUID(),
      attemptId: randomUUID(),
      query: "cancel",
      scope: { projects: [project] },
      pins,
    };
  }

  async function assemble(): Promise<Schemas["ContextSnapshot"]> {
    const { data, error } = await client.POST("/snapshots", { body: request() });
    if (!data || "snapshot" in data) throw new Error(error?.detail);
    return data;
  }

  await index("How to cancel.", "1");
  const first = await assemble();
  await index("How to cancel a booking.", "2");
  const second = await assemble();
  const readBack = await client.GET("/snapshots/{ref}", { params: { path: { ref: first.hash } } });
  const difference = await client.GET("/snapshots/{ref}/diff/{other}", {
    params: { path: { ref: first.hash, other: second.hash } },
  });
  const refused = await client.POST("/snapshots", { body: request({ sourceId: "gone.md" }) });
  return {
    hash: first.hash,
    readBack: readBack.data?.hash,
    items: first.items.map((item) => item.sourceId),
    causes: difference.data?.causes.map((one) => one.cause),
    problem: refused.error?.code,
  };
}

const [url = "", token = "", project = ""] = argv.slice(2);
main(url, token, project).then((found) => console.log(JSON.stringify(found)));
