// Makes a few plain calls with a generated client, and prints the answers.
import createClient from "openapi-fetch";
import type { paths } from "./shoal.d.ts";

const api = createClient<paths>({ baseUrl: process.argv[2] });
const embedded = await api.POST("/embed", { body: { inputs: "storm" } });
const scored = await api.POST("/score", { body: { query: "storm", inputs: ["rain"] } });
const submitted = await api.POST("/v1/jobs", { body: { op: "embed", inputs: "storm" } });
const scores: number[] = scored.data!.scores;
const id: string = submitted.data!.id;
console.log(JSON.stringify([embedded.response.status, scores.length, id.length]));

export async function search(queries: string): Promise<number> {
  const found = await api.POST("/search", { body: { queries } });
  return found.data!.results.length;
}
