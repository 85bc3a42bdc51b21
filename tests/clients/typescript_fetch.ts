// Drives what openapi-generator makes for TypeScript (typescript-fetch).

import { randomUUID } from "node:crypto";
import { argv } from "node:process";
import {
  Configuration,
  type ContextSnapshot,
  type CreateSnapshotBody,
  IndexApi,
  KnowledgeClass,
  type PinBody,
  ResponseError,
  SnapshotsApi,
} from "./generated/index";

async function main(url: string, token: string, project: string): Promise<object> {
  const configuration = new Configuration({ basePath: url, accessToken: token });
  const sources = new IndexApi(configuration);
  const snapshots = new SnapshotsApi(configuration);

  async function index(text: string, sourceRevision: string): Promise<void> {
    const source = {
      sourceId: "a.md",
      sourceRevision,
      _class: KnowledgeClass.Documents,
      project,
      text,
    };
    await sources.putSources({ putSourcesBody: { sources: [source] } });
  }

  function request(...pins: PinBody[]): CreateSnapshotBody {
    return {
      runId: randomUUID(),
      attemptId: randomUUID(),
      query: "cancel",
      scope: { projects: [project] },
      pins,
    };
  }

  async function assemble(): Promise<ContextSnapshot> {
    return await snapshots.createSnapshot({ createSnapshotBody: request() });
  }

  await index("How to cancel.", "1");
  const first = await assemble();
  await index("How to cancel a booking.", "2");
  const second = await assemble();
  const readBack = await snapshots.getSnapshot({ ref: first.hash });
  const difference = await snapshots.diffSnapshots({ ref: first.hash, other: second.hash });
  let problem: string | undefined;
  try {
    await snapshots.createSnapshot({ createSnapshotBody: request({ sourceId: "gone.md" }) });
  } catch (refused) {
    if (!(refused instanceof ResponseError)) throw refused;
    problem = (await refused.response.json()).code;
  }
  return {
    hash: first.hash,
    readBack: readBack.hash,
    items: first.items.map((item) => item.sourceId),
    causes: difference.causes.map((one) => one.cause),
    problem,
  };
}

const [url = "", token = "", project = ""] = argv.slice(2);
main(url, token, project).then((found) => console.log(JSON.stringify(found)));
