// A producer made of docs/protocol.md alone, with nothing but Node: its own RESP and its own msgpack.
//
//   node producer.mjs HOST PORT USER PASSWORD ROOT VECTORS
//
// It does everything that the pages show, the parts that need no worker first. Then it prints the line "worker", goes on
// with the parts that need one, and prints what it found as one line of JSON.
import {createHash, randomBytes} from 'node:crypto';
import {readFileSync} from 'node:fs';
import {connect} from 'node:net';
import assert from 'node:assert/strict';

const [host, port, user, password, root, vectorFile] = process.argv.slice(2);

// msgpack: strings are str, numbers are int or float, Uint8Array is bin; `asStr` writes it as str, for scripts

class AsStr {
  constructor(bytes) { this.bytes = Buffer.from(bytes); }
}

function head(fix, fixMost, wide, n) {
  if (fix !== null && n <= fixMost) return Buffer.from([fix | n]);
  const [code8, code16, code32] = wide;
  if (code8 !== null && n < 256) return Buffer.from([code8, n]);
  if (n < 65536) return Buffer.from([code16, n >> 8, n & 255]);
  const bytes = Buffer.alloc(5);
  bytes[0] = code32;
  bytes.writeUInt32BE(n, 1);
  return bytes;
}

function packNumber(value) {
  if (Number.isInteger(value) && value >= 0 && value < 128) return Buffer.from([value]);
  if (Number.isInteger(value) && value >= 0 && value < 2 ** 32) return head(null, 0, [0xcc, 0xcd, 0xce], value);
  const bytes = Buffer.alloc(9);
  if (Number.isSafeInteger(value)) {
    bytes[0] = 0xd3;
    bytes.writeBigInt64BE(BigInt(value), 1);
  } else {
    bytes[0] = 0xcb;
    bytes.writeDoubleBE(value, 1);
  }
  return bytes;
}

function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (value === true || value === false) return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === 'number') return packNumber(value);
  if (typeof value === 'string') value = new AsStr(value);
  if (value instanceof AsStr) {
    return Buffer.concat([head(0xa0, 31, [0xd9, 0xda, 0xdb], value.bytes.length), value.bytes]);
  }
  if (value instanceof Uint8Array) return Buffer.concat([head(null, 0, [0xc4, 0xc5, 0xc6], value.length), value]);
  if (Array.isArray(value)) return Buffer.concat([head(0x90, 15, [null, 0xdc, 0xdd], value.length), ...value.map(pack)]);
  const pairs = Object.entries(value).filter(([, item]) => item !== undefined);
  return Buffer.concat([head(0x80, 15, [null, 0xde, 0xdf], pairs.length), ...pairs.flat().map(pack)]);
}

function unpack(bytes) {
  let at = 0;
  const take = (n) => bytes.subarray(at, (at += n));
  const number = {1: (b) => b.readUInt8(), 2: (b) => b.readUInt16BE(), 4: (b) => b.readUInt32BE()};
  const length = (n) => number[n](take(n));
  const string = (n) => take(n).toString('utf8');
  const array = (n) => Array.from({length: n}, value);
  const map = (n) => Object.fromEntries(Array.from({length: n}, () => [value(), value()]));
  function value() {
    const code = take(1)[0];
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 15);
    if (code < 0xa0) return array(code & 15);
    if (code < 0xc0) return string(code & 31);
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return take(length(1 << (code - 0xc4)));
      case 0xca: return take(4).readFloatBE();
      case 0xcb: return take(8).readDoubleBE();
      case 0xcc: case 0xcd: case 0xce: return length(1 << (code - 0xcc));
      case 0xcf: return Number(take(8).readBigUInt64BE());
      case 0xd0: return take(1).readInt8();
      case 0xd1: return take(2).readInt16BE();
      case 0xd2: return take(4).readInt32BE();
      case 0xd3: return Number(take(8).readBigInt64BE());
      case 0xd9: case 0xda: case 0xdb: return string(length(1 << (code - 0xd9)));
      case 0xdc: case 0xdd: return array(length(2 << (code - 0xdc)));
      case 0xde: case 0xdf: return map(length(2 << (code - 0xde)));
      default: throw new Error(`msgpack type ${code.toString(16)}`);
    }
  }
  const found = value();
  assert.equal(at, bytes.length);
  return found;
}

// RESP: one connection, commands answered in order

class Redis {
  #waiting = [];
  #received = Buffer.alloc(0);

  constructor() {
    this.socket = connect(Number(port) ? {host, port: Number(port)} : {path: host});
    this.socket.on('data', (data) => this.#receive(data));
    this.socket.on('error', (error) => this.#waiting.forEach(({reject}) => reject(error)));
    this.call('AUTH', user, password);
  }

  call(...parts) {
    const all = parts.map((part) => (part instanceof Uint8Array ? part : Buffer.from(String(part))));
    const lines = all.flatMap((part) => [Buffer.from(`$${part.length}\r\n`), part, Buffer.from('\r\n')]);
    this.socket.write(Buffer.concat([Buffer.from(`*${all.length}\r\n`), ...lines]));
    return new Promise((resolve, reject) => this.#waiting.push({resolve, reject}));
  }

  close() { this.socket.end(); }

  #receive(data) {
    this.#received = Buffer.concat([this.#received, data]);
    for (;;) {
      const found = this.#parse(0);
      if (!found) return;
      this.#received = this.#received.subarray(found.end);
      const {resolve, reject} = this.#waiting.shift();
      if (found.value instanceof Error) reject(found.value);
      else resolve(found.value);
    }
  }

  #parse(at) {
    const eol = this.#received.indexOf('\r\n', at);
    if (eol < 0) return null;
    const [kind, line] = [this.#received[at], this.#received.toString('utf8', at + 1, eol)];
    let end = eol + 2;
    if (kind === 0x2b) return {value: line, end}; // +
    if (kind === 0x2d) return {value: new Error(line), end}; // -
    if (kind === 0x3a || line === '-1') return {value: kind === 0x3a ? Number(line) : null, end}; // : and nulls
    if (kind === 0x24) { // $
      const stop = end + Number(line);
      return this.#received.length < stop + 2 ? null : {value: this.#received.subarray(end, stop), end: stop + 2};
    }
    const items = [];
    for (let n = 0; n < Number(line); n++) {
      const item = this.#parse(end);
      if (!item) return null;
      items.push(item.value);
      end = item.end;
    }
    return {value: items, end};
  }
}

// The vectors of the protocol

const vectors = JSON.parse(readFileSync(vectorFile, 'utf8'));
const bytesOf = (vector) => Buffer.from(vector.hex, 'hex');

const redis = new Redis(); // for all commands that do not block
const reader = new Redis(); // for those that do

async function run(name, args) {
  const rest = [1, root, pack(args)];
  try {
    return unpack(await redis.call('EVALSHA', scripts[name].digest, ...rest));
  } catch (error) {
    if (!error.message.startsWith('NOSCRIPT')) throw error;
    knowsNoScript = true;
    return unpack(await redis.call('EVAL', scripts[name].text, ...rest));
  }
}

let knowsNoScript = false; // Redis did, at first
const newId = () => randomBytes(12).toString('hex');

async function heartbeat() {
  const ids = await redis.call('ZRANGE', `${root}:alive`, '0', '-1');
  const beats = await redis.call('MGET', ...ids.map((id) => `${root}:worker:${id}`));
  return beats.filter(Boolean).map(unpack).find((beat) => beat.state === 'ready');
}

assert.equal(await redis.call('PING'), 'PONG');
const scripts = {};
for (const name of ['put', 'cancel']) {
  const script = await redis.call('HGET', `${root}:scripts`, name);
  scripts[name] = {text: script, digest: createHash('sha1').update(script).digest('hex')};
}
assert.equal(String(await redis.call('SCRIPT', 'LOAD', scripts.cancel.text)), scripts.cancel.digest);
const worker = await heartbeat();
assert.equal(String(await redis.call('HGET', `${root}:limits`, 'max_texts')), String(worker.limits.max_texts));

const put = (lane, jobs, more = {}) => run('put', {lane, client: 'node', jobs, ...more});

function entryOf(job, reply_to = null, keeps_status = null) {
  return {id: job.id, job: new AsStr(pack(job)), texts: job.texts.length, reply_to, keeps_status};
}

const cancel = ({id}) => run('cancel', {id});

async function replies(address, count) {
  const found = {};
  while (Object.keys(found).length < count) {
    const streams = await reader.call('XREAD', 'COUNT', 1000, 'BLOCK', 10000, 'STREAMS', `${root}:replies:${address}`, 0);
    assert.ok(streams, 'no reply within 10 s');
    for (const [id, [, data]] of streams[0][1]) {
      const reply = unpack(data);
      found[reply.id] = reply;
      await redis.call('XDEL', `${root}:replies:${address}`, id);
    }
  }
  return found;
}

const status = async (id) => String((await redis.call('HGET', `${root}:job:${id}`, 'status')) ?? 'none');
const errorOf = async (promise) => promise.then(() => 'none', (error) => error.message);
const rows = ({vectors: {shape, data}}) => {
  const flat = Array.from({length: shape[0] * shape[1]}, (_, n) => data.readFloatLE(4 * n));
  return Array.from({length: shape[0]}, (_, n) => flat.slice(n * shape[1], (n + 1) * shape[1]));
};
const norm = (row) => Math.hypot(...row);

// 1. Bytes: the examples are what this program packs, and it can read those of replies

const jobs = vectors.filter(({kind}) => kind === 'job');
for (const vector of jobs) assert.deepEqual(pack(vector.json), bytesOf(vector), vector.name);
const read = vectors.filter(({kind}) => kind === 'reply').map((vector) => unpack(bytesOf(vector)));
assert.deepEqual(rows(read.find((reply) => reply.vectors))[0], [1, 0, 0]);
const found = {replies: read.map((reply) => reply.status)};

// 2. Without a worker: put, put again, cancel, refusals

const address = newId();
const job = (fields) => ({v: 1, id: newId(), op: 'embed', texts: ['storm in europe'], ...fields});
const mixed = [job({}), job({}), job({})];
const entries = [entryOf(mixed[0], address, true), entryOf(mixed[1], address), entryOf(mixed[2])];
found.put = (await put('interactive', entries)).is_new;
found.again = await put('interactive', [entries[0]]);
found.queued = await Promise.all(mixed.map(({id}) => status(id)));
const unwanted = [job({}), job({})];
await put('bulk', [entryOf(unwanted[0], address, true), entryOf(unwanted[1])]);
found.cancelled = await Promise.all(unwanted.map((one) => cancel(one)));
found.cancelled_again = await cancel(unwanted[1]);
found.unknown = await cancel(job({}));
const once = {key: newId(), digest: 'a'};
const kept = job({});
found.once = [];
for (const digest of ['a', 'a', 'b']) {
  found.once.push((await put('bulk', [entryOf(digest === 'a' && found.once.length === 0 ? kept : job({}))], {once: {...once, digest}})).status);
}
found.too_large = (await put('bulk', [{...entryOf(job({})), texts: worker.limits.max_texts + 1}])).status;
found.errors = [
  await errorOf(put('bulk', [{...entryOf(job({})), texts: 'one'}])),
  await errorOf(put('bulk', [entryOf(job({}))], {once: {...once, key: ''}})),
  await errorOf(put('slow', [entryOf(job({}))])),
  await errorOf(put('bulk', [{...entryOf(job({})), job: pack(job({}))}])),
];

// 3. With a worker

console.log('worker');
const expected = {[mixed[0].id]: 'done', [mixed[1].id]: 'done', [unwanted[0].id]: 'cancelled'};
const answers = await replies(address, 3);
for (const [id, wanted] of Object.entries(expected)) assert.equal(answers[id].status, wanted);
assert.ok(Math.abs(norm(rows(answers[mixed[0].id])[0]) - 1) < 1e-4);
found.done = [await status(mixed[0].id), await status(mixed[1].id)];
const [, result] = await reader.call('BLPOP', `${root}:result:${mixed[2].id}`, 10);
assert.deepEqual(rows(unpack(result)), rows(answers[mixed[0].id]));
assert.equal(unpack((await reader.call('BLPOP', `${root}:result:${kept.id}`, 10))[1]).status, 'done');

found.examples = {};
for (const vector of jobs) {
  const bytes = bytesOf(vector);
  const {id, reply_to} = unpack(bytes);
  await redis.call('RPUSH', `${root}:lane:interactive`, bytes);
  await redis.call('RPUSH', `${root}:lane:interactive:wake`, 1);
  const key = `${root}:result:${id}`;
  const reply = reply_to ? (await replies(reply_to, 1))[id] : unpack(await reader.call('BLMOVE', key, key, 'LEFT', 'LEFT', 10));
  if (!reply_to) {
    assert.equal(unpack(await redis.call('LINDEX', key, 0)).id, id);
    assert.equal(await redis.call('EXPIRE', key, 60), 1);
  }
  found.examples[id] = reply.error ? reply.error.code : (reply.hits?.[0] ?? reply.scores)?.length ?? reply.vectors.shape[0];
}

const [seconds] = await redis.call('TIME');
const late = [job({deadline: Number(seconds) - 1}), job({timeout_s: 0}), job({timeout_s: 60, normalise: true})];
await put('interactive', late.map((one) => entryOf(one, address)));
const timely = await replies(address, 3);
found.ignored = timely[late[2].id].ignored;
found.deadlines = late.map(({id}) => timely[id].status);

const broken = {id: newId(), job: new AsStr(Buffer.from([0xc1])), texts: 1};
await put('bulk', [broken]);
found.broken = unpack((await reader.call('BLPOP', `${root}:result:${broken.id}`, 10))[1]).error;
found.broken_status = await status(broken.id);

console.log(JSON.stringify({...found, knowsNoScript}));
redis.close();
reader.close();
