// Locks with bsm/redislock and redsync; see ../README.md for the words.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func say(event string, more map[string]any) {
	line := map[string]any{"event": event}
	for key, value := range more {
		line[key] = value
	}
	bytes, _ := json.Marshal(line)
	fmt.Println(string(bytes))
}

func now() map[string]any {
	return map[string]any{"us": time.Now().UnixMicro()}
}

type peer interface {
	acquire(wait bool) (bool, error)
	renew() bool
	release() error
	force() error
	stored() string
}

type bsm struct {
	client redis.UniversalClient
	key    string
	ttl    time.Duration
	lock   *redislock.Lock
}

func (b *bsm) acquire(wait bool) (bool, error) {
	options := &redislock.Options{Metadata: "go-" + strconv.Itoa(os.Getpid())}
	ctx := context.Background()
	if wait {
		options.RetryStrategy = redislock.LinearBackoff(50 * time.Millisecond)
		// Without a deadline it waits for one ttl at most.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
	}
	lock, err := redislock.New(b.client).Obtain(ctx, b.key, b.ttl, options)
	if errors.Is(err, redislock.ErrNotObtained) {
		return false, nil
	}
	b.lock = lock
	return err == nil, err
}

func (b *bsm) renew() bool {
	return b.lock.Refresh(context.Background(), b.ttl, nil) == nil
}

func (b *bsm) release() error {
	return b.lock.Release(context.Background())
}

func (b *bsm) force() error {
	return b.client.Del(context.Background(), b.key).Err()
}

func (b *bsm) stored() string {
	return b.client.Get(context.Background(), b.key).Val()
}

type sync struct {
	client redis.UniversalClient
	key    string
	mutex  *redsync.Mutex
}

func newSync(client redis.UniversalClient, key string, ttl time.Duration) *sync {
	mutex := redsync.New(goredis.NewPool(client)).NewMutex(key,
		redsync.WithExpiry(ttl), redsync.WithTries(20_000))
	return &sync{client: client, key: key, mutex: mutex}
}

func (s *sync) acquire(wait bool) (bool, error) {
	if wait {
		err := s.mutex.Lock()
		return err == nil, err
	}
	err := s.mutex.TryLock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
		return false, nil
	}
	return err == nil, err
}

func (s *sync) renew() bool {
	ok, err := s.mutex.Extend()
	return ok && err == nil
}

func (s *sync) release() error {
	_, err := s.mutex.Unlock()
	return err
}

func (s *sync) force() error {
	return s.client.Del(context.Background(), s.key).Err()
}

func (s *sync) stored() string {
	return s.client.Get(context.Background(), s.key).Val()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func wait(lock peer) {
	_, err := lock.acquire(true)
	must(err)
}

func count(lock peer, file string, times int) {
	for range times {
		wait(lock)
		text, err := os.ReadFile(file)
		must(err)
		time.Sleep(time.Millisecond)
		must(os.WriteFile(file, []byte(strconv.Itoa(number(string(text))+1)), 0o600))
		must(lock.release())
	}
	say("counted", nil)
}

func hold(lock peer, length, ttl time.Duration) {
	wait(lock)
	say("held", now())
	until := time.Now().Add(length)
	for time.Now().Before(until) {
		time.Sleep(min(time.Until(until), ttl/3))
		if time.Now().Before(until) && !lock.renew() {
			say("lost", now())
			return
		}
	}
	say("releasing", now())
	must(lock.release())
	say("released", now())
}

func main() {
	name, port, command, key, rest := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]
	var addresses []string
	for one := range strings.SplitSeq(port, ",") {
		addresses = append(addresses, "127.0.0.1:"+one)
	}
	// Several are nodes of a cluster.
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses})
	create := func(ttlMs int) peer {
		ttl := time.Duration(ttlMs) * time.Millisecond
		if name == "redsync" {
			return newSync(client, key, ttl)
		}
		return &bsm{client: client, key: key, ttl: ttl}
	}
	switch command {
	case "count":
		count(create(10_000), rest[0], number(rest[1]))
	case "hold":
		ms := time.Millisecond
		hold(create(number(rest[1])), time.Duration(number(rest[0]))*ms, time.Duration(number(rest[1]))*ms)
	case "wait":
		lock := create(number(rest[0]))
		must(client.Ping(context.Background()).Err())
		say("waiting", nil)
		wait(lock)
		say("held", now())
		must(lock.release())
		say("released", now())
	case "try":
		lock := create(10_000)
		held, err := lock.acquire(false)
		switch {
		case err != nil:
			say("refused", map[string]any{"why": err.Error()})
		case held:
			say("held", nil)
			must(lock.release())
		default:
			say("busy", nil)
		}
	case "take":
		wait(create(number(rest[0])))
		say("held", now())
	case "force":
		lock := create(10_000)
		must(client.Ping(context.Background()).Err())
		say("forcing", now())
		must(lock.force())
		say("forced", now())
	case "meta":
		lock := create(10_000)
		say("meta", map[string]any{"value": lock.stored()})
	default:
		must(errors.New("no such command: " + command))
	}
}
