// Locks with node-redlock, to be measured. The words are those of peer.py.

import { Redlock } from '@sesamecare-oss/redlock';
import { Redis } from 'ioredis';

const [port, , pause, what, contenders, seconds] = process.argv.slice(2);
const settings = { retryCount: -1, retryJitter: 0 };
if (Number(pause) > 0) settings.retryDelay = Number(pause);

let until = 0;
let count = 0;
let last = null;

async function contend(redlock, number) {
  const key = what === 'handoff' ? 'peer' : `peer/${number}`;
  while (performance.now() < until) {
    const lock = await redlock.acquire([key], 30000);
    if (what === 'cycle') {
      count += 1;
    } else if (last !== number) {
      last = number;
      count += 1;
    }
    await lock.release();
  }
}

// As processes have them: a connection for each where one lock is wanted by all.
const number = Number(contenders);
const shared = new Redis(Number(port));
const clients = Array.from({ length: number }, () =>
  what === 'handoff' ? new Redis(Number(port)) : shared,
);
await Promise.all([shared, ...clients].map((client) => client.ping()));
const locks = clients.map((client) => new Redlock([client], settings));
const began = performance.now();
const cpu = process.cpuUsage();
until = began + Number(seconds) * 1000;
await Promise.all(locks.map(contend));
const took = (performance.now() - began) / 1000;
const used = process.cpuUsage(cpu);
console.log(JSON.stringify({ count, seconds: took, cpu_us: used.user + used.system }));
process.exit(0);
