// Locks with node-redlock's maintained fork and redis-semaphore; see ../README.md for the words.

import { readFileSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { Redlock, ResourceLockedError } from '@sesamecare-oss/redlock';
import { Mutex } from 'redis-semaphore';

const say = (event, more = {}) => process.stdout.write(`${JSON.stringify({ event, ...more })}\n`);
const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

class NodeRedlock {
  constructor(client, key, ttlMs) {
    Object.assign(this, { client, key, ttlMs });
    this.redlock = new Redlock([client], { retryDelay: 50, retryJitter: 50 });
  }
  async acquire(wait) {
    try {
      this.lock = await this.redlock.acquire([this.key], this.ttlMs, { retryCount: wait ? -1 : 0 });
      return true;
    } catch (error) {
      const attempts = await Promise.all(error.attempts ?? []);
      const against = attempts.flatMap((stats) => [...stats.votesAgainst.values()]);
      const other = against.find((vote) => !(vote instanceof ResourceLockedError));
      if (other) throw other;
      if (!error.attempts) throw error;
      return false;
    }
  }
  async renew() {
    try {
      this.lock = await this.lock.extend(this.ttlMs);
      return true;
    } catch {
      return false;
    }
  }
  release() {
    return this.lock.release();
  }
  force() {
    return this.client.del(this.key);
  }
  stored() {
    return this.client.get(this.key);
  }
}

class RedisSemaphore {
  constructor(client, key, ttlMs) {
    Object.assign(this, { client, key });
    this.kept = true;
    this.ttlMs = ttlMs;
  }
  async acquire(wait) {
    const { client, key, ttlMs } = this;
    this.mutex = new Mutex(client, key, {
      lockTimeout: ttlMs,
      acquireTimeout: 600_000,
      acquireAttemptsLimit: wait ? Number.POSITIVE_INFINITY : 1,
      refreshInterval: ttlMs / 3,
      onLockLost: () => {
        this.kept = false;
      },
    });
    return this.mutex.tryAcquire();
  }
  async renew() {
    return this.kept;
  }
  release() {
    return this.mutex.release();
  }
  force() {
    return this.client.del(`mutex:${this.key}`);
  }
  stored() {
    return this.client.get(`mutex:${this.key}`);
  }
}

const PEERS = { 'node-redlock': NodeRedlock, 'redis-semaphore': RedisSemaphore };

async function count(make, file, times) {
  for (let i = 0; i < times; i += 1) {
    const lock = make(10_000);
    await lock.acquire(true);
    const value = Number(readFileSync(file, 'utf8'));
    await sleep(1);
    writeFileSync(file, String(value + 1));
    await lock.release();
  }
  say('counted');
}

async function hold(lock, lengthMs, ttlMs) {
  await lock.acquire(true);
  say('held', { us: nowUs() });
  const until = performance.now() + lengthMs;
  while (performance.now() < until) {
    await sleep(Math.min(until - performance.now(), ttlMs / 3));
    if (performance.now() < until && !(await lock.renew())) {
      say('lost', { us: nowUs() });
      return;
    }
  }
  say('releasing', { us: nowUs() });
  await lock.release();
  say('released', { us: nowUs() });
}

const [peer, port, command, key, ...rest] = process.argv.slice(2);
const nodes = port.split(',').map((one) => ({ host: '127.0.0.1', port: Number(one) }));
const client = nodes.length > 1 ? new Cluster(nodes) : new Redis(nodes[0]);
const make = (ttlMs) => new PEERS[peer](client, key, ttlMs);
switch (command) {
  case 'count':
    await count(make, rest[0], Number(rest[1]));
    break;
  case 'hold':
    await hold(make(Number(rest[1])), Number(rest[0]), Number(rest[1]));
    break;
  case 'wait': {
    const lock = make(Number(rest[0]));
    await client.ping();
    say('waiting');
    await lock.acquire(true);
    say('held', { us: nowUs() });
    await lock.release();
    say('released', { us: nowUs() });
    break;
  }
  case 'try': {
    const lock = make(10_000);
    try {
      const held = await lock.acquire(false);
      say(held ? 'held' : 'busy');
      if (held) await lock.release();
    } catch (error) {
      say('refused', { why: error.message });
    }
    break;
  }
  case 'take':
    await make(Number(rest[0])).acquire(true);
    say('held', { us: nowUs() });
    break;
  case 'force':
    await client.ping();
    say('forcing', { us: nowUs() });
    await make(10_000).force();
    say('forced', { us: nowUs() });
    break;
  case 'meta':
    say('meta', { value: (await make(10_000).stored()) ?? '' });
    break;
  default:
    throw new Error(`no such command: ${command}`);
}
process.exit(0);
