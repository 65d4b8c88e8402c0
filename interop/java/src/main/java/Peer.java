// Locks with Redisson, Spring Integration's registry and ShedLock; see ../../../../README.md for the words.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.spring.RedisLockProvider;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.RedisClusterConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.integration.redis.util.RedisLockRegistry;

public final class Peer {
    interface Library {
        boolean acquire(boolean wait) throws Exception;

        /** Extends the lease, or says whether the library has kept it by itself. */
        boolean renew() throws Exception;

        void release() throws Exception;

        void force() throws Exception;

        String stored() throws Exception;
    }

    static final class WithRedisson implements Library {
        final RedissonClient client;
        final RLock lock;
        final boolean fenced;

        WithRedisson(String port, String key, long ttlMs, boolean fenced) {
            Config config = new Config();
            config.setLockWatchdogTimeout(ttlMs);
            if (port.contains(",")) {
                config.useClusterServers()
                        .addNodeAddress(nodes(port, "redis://"))
                        .setMasterConnectionMinimumIdleSize(1);
            } else {
                config.useSingleServer().setAddress("redis://127.0.0.1:" + port).setConnectionMinimumIdleSize(1);
            }
            client = Redisson.create(config);
            lock = fenced ? client.getFencedLock(key) : client.getLock(key);
            this.fenced = fenced;
        }

        public boolean acquire(boolean wait) {
            if (!wait) {
                return lock.tryLock();
            }
            lock.lock();
            return true;
        }

        public boolean renew() {
            return lock.isHeldByCurrentThread();
        }

        public void release() {
            lock.unlock();
        }

        public void force() {
            lock.forceUnlock();
        }

        public String stored() {
            return fenced ? ((RFencedLock) lock).getToken().toString() : String.valueOf(lock.isLocked());
        }
    }

    static final class WithSpring implements Library {
        final RedisLockRegistry registry;
        final StringRedisTemplate template;
        final String key;

        WithSpring(LettuceConnectionFactory server, String key, long ttlMs, boolean messages) {
            registry = new RedisLockRegistry(server, "registry", ttlMs);
            if (messages) {
                registry.setRedisLockType(RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
            }
            template = new StringRedisTemplate(server);
            this.key = key;
        }

        public boolean acquire(boolean wait) {
            if (!wait) {
                return registry.obtain(key).tryLock();
            }
            registry.obtain(key).lock();
            return true;
        }

        public boolean renew() {
            try {
                registry.renewLock(key);
                return true;
            } catch (IllegalStateException lost) {
                return false;
            }
        }

        public void release() {
            registry.obtain(key).unlock();
        }

        public void force() {
            template.delete("registry:" + key);
        }

        public String stored() {
            return template.opsForValue().get("registry:" + key);
        }
    }

    static final class WithShedLock implements Library {
        final RedisLockProvider provider;
        final StringRedisTemplate template;
        final String key;
        final Duration ttl;
        SimpleLock lock;

        WithShedLock(LettuceConnectionFactory server, String key, long ttlMs) {
            provider = new RedisLockProvider.Builder(server).environment("interop").safeUpdate(true).build();
            template = new StringRedisTemplate(server);
            this.key = key;
            ttl = Duration.ofMillis(ttlMs);
        }

        public boolean acquire(boolean wait) throws InterruptedException {
            while (true) {
                Optional<SimpleLock> taken =
                        provider.lock(new LockConfiguration(Instant.now(), key, ttl, Duration.ZERO));
                if (taken.isPresent()) {
                    lock = taken.get();
                    return true;
                }
                if (!wait) {
                    return false;
                }
                Thread.sleep(10);
            }
        }

        public boolean renew() {
            Optional<SimpleLock> extended = lock.extend(ttl, Duration.ZERO);
            extended.ifPresent(next -> lock = next);
            return extended.isPresent();
        }

        public void release() {
            lock.unlock();
        }

        public void force() {
            template.delete("job-lock:interop:" + key);
        }

        public String stored() {
            return template.opsForValue().get("job-lock:interop:" + key);
        }
    }

    /** The nodes of a cluster, whose ports have commas between them. */
    static String[] nodes(String ports, String before) {
        return Arrays.stream(ports.split(",")).map(port -> before + "127.0.0.1:" + port).toArray(String[]::new);
    }

    static Library library(String peer, String port, String key, long ttlMs) {
        if (peer.startsWith("redisson")) {
            return new WithRedisson(port, key, ttlMs, peer.equals("redisson-fenced"));
        }
        LettuceConnectionFactory server = port.contains(",")
                ? new LettuceConnectionFactory(new RedisClusterConfiguration(List.of(nodes(port, ""))))
                : new LettuceConnectionFactory("127.0.0.1", Integer.parseInt(port));
        server.afterPropertiesSet();
        server.start();
        return switch (peer) {
            case "spring" -> new WithSpring(server, key, ttlMs, false);
            case "spring-messages" -> new WithSpring(server, key, ttlMs, true);
            case "shedlock" -> new WithShedLock(server, key, ttlMs);
            default -> throw new IllegalArgumentException("no such library: " + peer);
        };
    }

    static void say(String event) {
        System.out.println("{\"event\":\"" + event + "\"}");
    }

    static void sayWhen(String event) {
        Instant now = Instant.now();
        long us = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
        System.out.println("{\"event\":\"" + event + "\",\"us\":" + us + "}");
    }

    static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
    }

    static void count(Library library, Path file, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            library.acquire(true);
            int value = Integer.parseInt(Files.readString(file).trim());
            Thread.sleep(1);
            Files.writeString(file, Integer.toString(value + 1));
            library.release();
        }
        say("counted");
    }

    static void hold(Library library, long lengthMs, long ttlMs) throws Exception {
        library.acquire(true);
        sayWhen("held");
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(lengthMs);
        while (System.nanoTime() < until) {
            long left = Math.max(1, TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime()));
            Thread.sleep(Math.min(left, ttlMs / 3));
            if (System.nanoTime() < until && !library.renew()) {
                sayWhen("lost");
                return;
            }
        }
        sayWhen("releasing");
        library.release();
        sayWhen("released");
    }

    static void tryOnce(Library library) throws Exception {
        boolean held;
        try {
            held = library.acquire(false);
        } catch (RuntimeException error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            System.out.println("{\"event\":\"refused\",\"why\":" + quoted(String.valueOf(cause.getMessage())) + "}");
            return;
        }
        say(held ? "held" : "busy");
        if (held) {
            library.release();
        }
    }

    /** Carries commands out that come as lines, for a caller that does not want to wait for a new machine each time. */
    static void serve(String port) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> words = new ArrayList<>(List.of(line.split(" ")));
            words.add(1, port);
            run(words.toArray(new String[0]));
            say("done");
        }
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("lines")) {
            serve(words[1]);
        } else {
            run(words);
        }
        // Without the libraries' own way out: what is held stays held, as when a process dies.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static void run(String[] words) throws Exception {
        String peer = words[0];
        String port = words[1];
        String command = words[2];
        String key = words[3];
        long ttlMs =
                switch (command) {
                    case "hold" -> Long.parseLong(words[5]);
                    case "wait", "take" -> Long.parseLong(words[4]);
                    default -> 10_000;
                };
        Library library = library(peer, port, key, ttlMs);
        switch (command) {
            case "count" -> count(library, Path.of(words[4]), Integer.parseInt(words[5]));
            case "hold" -> hold(library, Long.parseLong(words[4]), ttlMs);
            case "wait" -> {
                library.stored();
                say("waiting");
                library.acquire(true);
                sayWhen("held");
                library.release();
                sayWhen("released");
            }
            case "try" -> tryOnce(library);
            case "take" -> {
                library.acquire(true);
                sayWhen("held");
            }
            case "force" -> {
                library.stored();
                sayWhen("forcing");
                library.force();
                sayWhen("forced");
            }
            case "meta" ->
                System.out.println("{\"event\":\"meta\",\"value\":" + quoted(String.valueOf(library.stored())) + "}");
            default -> throw new IllegalArgumentException("no such command: " + command);
        }
    }
}
