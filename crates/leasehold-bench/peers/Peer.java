// Locks with Redisson, to be measured. The words are those of peer.py; the library is redisson or
// redisson-fenced.

import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public final class Peer {
    static final long WARM_UP_MS = 1500;

    static volatile long until;
    static final AtomicLong count = new AtomicLong();
    static final AtomicInteger last = new AtomicInteger(-1);
    static final AtomicReference<Throwable> failed = new AtomicReference<>();

    static long processorNs() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    static void contend(RLock lock, int number, boolean cycle) {
        while (System.nanoTime() - until < 0) {
            lock.lock();
            if (cycle) {
                count.incrementAndGet();
            } else if (last.getAndSet(number) != number) {
                count.incrementAndGet();
            }
            lock.unlock();
        }
    }

    static void run(List<RLock> locks, boolean cycle, long forMs) throws Exception {
        until = System.nanoTime() + forMs * 1_000_000;
        var threads = new ArrayList<Thread>();
        for (int number = 0; number < locks.size(); number++) {
            int own = number;
            var thread = new Thread(() -> {
                try {
                    contend(locks.get(own), own, cycle);
                } catch (Throwable error) {
                    failed.set(error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (var thread : threads) thread.join();
        if (failed.get() != null) throw new Exception(failed.get());
    }

    public static void main(String[] args) throws Exception {
        String port = args[0];
        boolean fenced = args[1].equals("redisson-fenced"), cycle = args[3].equals("cycle");
        int contenders = Integer.parseInt(args[4]);
        long forMs = Math.round(Double.parseDouble(args[5]) * 1000);
        // As processes have them: a client for each where one lock is wanted by all; their threads are shared.
        int number = cycle ? 1 : contenders;
        ExecutorService executor = Executors.newCachedThreadPool();
        var group = new MultiThreadIoEventLoopGroup(2, NioIoHandler.newFactory());
        var clients = new ArrayList<RedissonClient>();
        for (int i = 0; i < number; i++) {
            Config config = new Config();
            config.setExecutor(executor).setEventLoopGroup(group);
            config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
            if (!cycle) {
                config.useSingleServer().setConnectionMinimumIdleSize(1).setConnectionPoolSize(2);
            }
            clients.add(Redisson.create(config));
        }
        var locks = new ArrayList<RLock>();
        for (int i = 0; i < contenders; i++) {
            var client = clients.get(i % number);
            String key = cycle ? "peer/" + i : "peer";
            locks.add(fenced ? client.getFencedLock(key) : client.getLock(key));
        }
        // The virtual machine compiles what runs often.
        run(locks, cycle, Math.min(WARM_UP_MS, 5 * forMs));
        count.set(0);
        long began = System.nanoTime(), processor = processorNs();
        run(locks, cycle, forMs);
        double seconds = (System.nanoTime() - began) / 1e9, us = (processorNs() - processor) / 1e3;
        System.out.println(
                "{\"count\": " + count.get() + ", \"seconds\": " + seconds + ", \"cpu_us\": " + us + "}");
        Runtime.getRuntime().halt(0);
    }
}
