<?php
// Locks with Symfony's Lock component; see ../README.md for the words.

declare(strict_types=1);

require 'Symfony/Component/Lock/autoload.php';

use Symfony\Component\Lock\Exception\ExceptionInterface;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\Lock;
use Symfony\Component\Lock\Store\RedisStore;

function say(string $event, array $more = []): void
{
    echo json_encode(['event' => $event] + $more), "\n";
    flush();
}

function now_us(): array
{
    return ['us' => (int) (microtime(true) * 1e6)];
}

[, $peer, $port, $command, $name] = $argv;
$rest = array_slice($argv, 5);
if (str_contains($port, ',')) {
    $redis = new RedisCluster(null, array_map(static fn (string $one): string => "127.0.0.1:$one", explode(',', $port)));
} else {
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port);
}
$make = static fn (int $ttl_ms): Lock => new Lock(
    new Key($name),
    new RedisStore($redis, $ttl_ms / 1000),
    $ttl_ms / 1000,
    false,
);

switch ($command) {
    case 'count':
        $lock = $make(10_000);
        for ($i = 0; $i < (int) $rest[1]; ++$i) {
            $lock->acquire(true);
            $value = (int) file_get_contents($rest[0]);
            usleep(1000);
            file_put_contents($rest[0], (string) ($value + 1));
            $lock->release();
        }
        say('counted');
        break;
    case 'hold':
        [$length_ms, $ttl_ms] = array_map(intval(...), $rest);
        $lock = $make($ttl_ms);
        $lock->acquire(true);
        say('held', now_us());
        $until = microtime(true) + $length_ms / 1000;
        while (($left = $until - microtime(true)) > 0) {
            usleep((int) (1e6 * min($left, $ttl_ms / 3000)));
            if (microtime(true) < $until) {
                try {
                    $lock->refresh();
                } catch (ExceptionInterface) {
                    say('lost', now_us());
                    exit(0);
                }
            }
        }
        say('releasing', now_us());
        $lock->release();
        say('released', now_us());
        break;
    case 'wait':
        $lock = $make((int) $rest[0]);
        say('waiting');
        $lock->acquire(true);
        say('held', now_us());
        $lock->release();
        say('released', now_us());
        break;
    case 'try':
        $lock = $make(10_000);
        try {
            $held = $lock->acquire(false);
        } catch (ExceptionInterface $error) {
            say('refused', ['why' => ($error->getPrevious() ?? $error)->getMessage()]);
            break;
        }
        say($held ? 'held' : 'busy');
        if ($held) {
            $lock->release();
        }
        break;
    case 'take':
        $make((int) $rest[0])->acquire(true);
        say('held', now_us());
        break;
    case 'force':
        say('forcing', now_us());
        $redis->del($name);
        say('forced', now_us());
        break;
    case 'meta':
        say('meta', ['value' => json_encode($redis->zRange($name, 0, -1, true))]);
        break;
    default:
        fwrite(STDERR, "no such command: $command\n");
        exit(1);
}
