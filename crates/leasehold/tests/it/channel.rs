//! Notification channels that can't be opened, break, or bring nothing: waiters poll instead.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Mutex, Release};
use leasehold_testkit::fault_store::{FaultStore, Messages};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::support::{World, ms, patiently, renewed, secs};

async fn waiting(client: &Client, key: &str, count: usize) {
    patiently("waiters in the line", async {
        while client.inspect(key).await.unwrap().map_or(0, |info| info.waiters.len()) != count {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

async fn subscribed(server: &RedisServer) {
    patiently("a subscription", async {
        while server.command_calls("subscribe") == 0 {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

/// Has a waiter granted the lock, by a release that comes long before the lease would expire and
/// the waiter would poll again.
async fn hand_over(holder: &Client, waiter: Mutex) {
    let guard = holder.mutex("a").ttl(secs(600)).lock().await.unwrap();
    // Less than its heartbeats are apart.
    let waiting_for_it = tokio::spawn(async move { waiter.lock_within(secs(8)).await });
    waiting(holder, "a", 1).await;
    guard.release().await.unwrap();
    let guard = waiting_for_it.await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// A proxy that ends every connection with a subscription.
async fn against_subscriptions(server: SocketAddr) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move {
                let (mut asked, mut told) = ([0; 4096], [0; 4096]);
                loop {
                    let sent = tokio::select! {
                        read = client.read(&mut asked) => match read {
                            Ok(1..) if asked.windows(9).any(|word| word == b"SUBSCRIBE") => break,
                            Ok(count @ 1..) => server.write_all(&asked[..count]).await,
                            Ok(_) | Err(_) => break,
                        },
                        read = server.read(&mut told) => match read {
                            Ok(count @ 1..) => client.write_all(&told[..count]).await,
                            Ok(_) | Err(_) => break,
                        },
                    };
                    if sent.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_proxy_that_refuses_subscriptions_keeps_no_waiter_from_a_free_lock() {
    let server = RedisServer::start();
    let holder = Client::connect(server.url()).await.unwrap();
    let proxy = against_subscriptions(server.addr()).await;
    let waiter = Client::connect(format!("redis://{proxy}")).await.unwrap();
    for _ in 0..3 {
        hand_over(&holder, waiter.mutex("a")).await;
    }
    assert_eq!(server.command_calls("subscribe"), 0);
}

#[tokio::test]
async fn a_server_without_room_for_a_channel_keeps_no_waiter_from_a_free_lock() {
    let server = RedisServer::start();
    let holder = Client::connect(server.url()).await.unwrap();
    let waiter = Client::connect(server.url()).await.unwrap();
    assert_eq!(server.cli(&["CONFIG", "SET", "maxclients", "9"]), "OK");
    let crowd: Vec<_> = (0..7).map(|_| TcpStream::connect(server.addr()).unwrap()).collect();
    for _ in 0..3 {
        hand_over(&holder, waiter.mutex("a")).await;
    }
    // Once there is room, the channel is there by itself.
    let guard = holder.mutex("a").lock().await.unwrap();
    let mutex = waiter.mutex("a");
    let waiting_for_it = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    drop(crowd);
    patiently("room for the test's own connection", async {
        while server.try_cli(&["PING"]).is_err() {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    subscribed(&server).await;
    guard.release().await.unwrap();
    drop(waiting_for_it.await.unwrap().unwrap());
}

#[tokio::test]
async fn renewals_need_no_room_for_a_connection_of_their_own() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let _crowd = crowded(&server, 3, 2);
    let guard = client.mutex("a").ttl(secs(3)).lock().await.unwrap();
    renewed(&client, "a", secs(3), || guard.check().unwrap()).await;
    guard.release().await.unwrap();
}

#[test]
fn one_connection_serves_callers_on_all_runtimes_though_the_first_ends() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for ends in [true, false] {
        let server = RedisServer::start();
        let first = Builder::new_current_thread().enable_all().build().unwrap();
        let (second, third) = (runtime(), runtime());
        let client = first.block_on(async {
            let client = Client::connect(server.url()).await.unwrap();
            client.mutex("x").lock().await.unwrap().release().await.unwrap();
            client
        });
        // Beside it there is room for one that asks.
        let _crowd = crowded(&server, 3, 2);
        let guard = second.block_on(client.mutex("a").ttl(secs(3)).lock()).unwrap();
        let mut kept = Some(first);
        if ends {
            drop(kept.take());
        }
        third.block_on(async {
            for _ in 0..3 {
                let guard = client.mutex("x").lock_within(secs(60)).await.unwrap();
                assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
            }
            renewed(&client, "a", secs(3), || guard.check().unwrap()).await;
        });
        assert_eq!(second.block_on(guard.release_outcome()).unwrap(), Release::Released);
    }
}

/// A connection of an operator, which is there while a server has no room for any other.
struct Operator(BufReader<TcpStream>);

impl Operator {
    fn at(server: &RedisServer) -> Self {
        let connection = TcpStream::connect(server.addr()).unwrap();
        connection.set_read_timeout(Some(secs(60))).unwrap();
        Self(BufReader::new(connection))
    }

    /// What the server answers: a line, or the text that it announces.
    fn ask(&mut self, command: &str) -> String {
        writeln!(self.0.get_mut(), "{command}\r").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        let Some(length) = answer.trim_end().strip_prefix('$') else { return answer };
        let mut text = vec![0; length.parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut text).unwrap();
        // What is stored is no text, and every byte of it counts.
        String::from_utf8(text)
            .unwrap_or_else(|bytes| bytes.into_bytes().escape_ascii().to_string())
    }

    /// Leaves room for one more connection, and ends all connections but those that listen.
    fn leaves_one_place(&mut self) {
        assert_eq!(self.ask("CONFIG SET maxclients 2"), "+OK\r\n");
        assert!(self.ask("CLIENT KILL TYPE normal SKIPME yes").starts_with(':'));
    }

    fn clients(&mut self, which: &str) -> usize {
        self.ask(&format!("CLIENT LIST {which}")).lines().filter(|line| !line.is_empty()).count()
    }
}

async fn takes_and_releases(client: &Client, key: &str) {
    for _ in 0..3 {
        let guard = client.mutex(key).lock_within(secs(60)).await.unwrap();
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn one_connection_does_for_requests_and_renewals() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let guard = client.mutex("a").ttl(secs(3)).lock().await.unwrap();
    let mut operator = Operator::at(&server);
    operator.leaves_one_place();
    // An acquisition outlasts the loss of its connection, which an inspection reports.
    takes_and_releases(&client, "b").await;
    renewed(&client, "a", secs(3), || guard.check().unwrap()).await;
    assert_eq!(operator.clients(""), 2);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn messages_make_room_where_requests_have_none() {
    let server = RedisServer::start();
    let holder = Client::connect(server.url()).await.unwrap();
    let guard = holder.mutex("a").ttl(secs(600)).lock().await.unwrap();
    let waiter = Client::connect(server.url()).await.unwrap();
    let mutex = waiter.mutex("a");
    let waiting_for_it = tokio::spawn(async move { mutex.lock().await });
    waiting(&holder, "a", 1).await;
    subscribed(&server).await;
    let mut operator = Operator::at(&server);
    // It has the connection that is left until a request needs it, which may be at once.
    assert_eq!(operator.clients("TYPE pubsub"), 1);
    operator.leaves_one_place();
    takes_and_releases(&waiter, "b").await;
    assert_eq!(operator.ask("DEL leasehold:{a}"), ":1\r\n");
    let next = patiently("the lock", waiting_for_it).await.unwrap().unwrap();
    assert_eq!(next.release_outcome().await.unwrap(), Release::Released);
    drop(guard);
}

#[test]
fn renewals_of_a_runtime_that_nothing_drives_need_no_connection_of_their_own() {
    let server = RedisServer::start();
    let mut operator = Operator::at(&server);
    let left = Builder::new_current_thread().enable_all().build().unwrap();
    let client = left.block_on(Client::connect(server.url())).unwrap();
    assert_eq!(operator.ask("CONFIG SET maxclients 2"), "+OK\r\n");
    let guard = left.block_on(client.mutex("a").ttl(secs(3)).lock()).unwrap();
    for _ in 0..3 {
        let before = operator.ask("HGET leasehold:{a} state");
        let begun = Instant::now();
        while operator.ask("HGET leasehold:{a} state") == before {
            guard.check().unwrap();
            assert!(begun.elapsed() < secs(60), "it is not renewed");
            std::thread::sleep(ms(20));
        }
    }
    left.block_on(takes_and_releases(&client, "b"));
    assert_eq!(left.block_on(guard.release_outcome()).unwrap(), Release::Released);
}

#[tokio::test]
async fn nor_does_a_node_of_a_cluster_without_room_for_one() {
    let cluster = Cluster::builder().replicas(0).start();
    let client = Client::connect(cluster.url()).await.unwrap();
    client.mutex("a").lock().await.unwrap().release().await.unwrap();
    for node in cluster.nodes() {
        // Those that are there stay.
        assert_eq!(node.cli(&["CONFIG", "SET", "maxclients", "1"]), "OK");
    }
    let guard = client.mutex("a").ttl(secs(3)).lock().await.unwrap();
    renewed(&client, "a", secs(3), || guard.check().unwrap()).await;
    guard.release().await.unwrap();
}

/// Has a server take no more than this many clients, with so many more of them.
fn crowded(server: &RedisServer, clients_max: usize, more: usize) -> Vec<TcpStream> {
    assert_eq!(server.cli(&["CONFIG", "SET", "maxclients", &clients_max.to_string()]), "OK");
    (0..more).map(|_| TcpStream::connect(server.addr()).unwrap()).collect()
}

#[tokio::test]
async fn nor_does_one_without_room_for_those_on_which_its_replicas_are_waited_for() {
    let server = RedisServer::start();
    let _replica = RedisServer::builder().replica_of(&server).start();
    patiently("the replica to be in step", async {
        while !server.info("replication").get("slave0").is_some_and(|it| it.contains("online")) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    let client = Client::connect(format!("{}?replicas=1&keep_leases=yes", server.url()));
    let client = client.await.unwrap();
    // All are taken on the connection of the first, which is there.
    client.mutex("a").lock().await.unwrap().release().await.unwrap();
    let connected = server.info("clients")["connected_clients"].parse::<usize>().unwrap() - 1;
    let crowd = crowded(&server, connected + 2, 2);
    // Names with connections of their own, which can't be made, come over those that are there.
    for name in 0..20 {
        let mutex = client.mutex(format!("other/{name}"));
        mutex.lock().await.unwrap().release().await.unwrap();
    }
    let guard = client.multi(["a", "b", "c", "d"]).ttl(secs(3)).lock().await.unwrap();
    for key in ["a", "b", "c", "d"] {
        renewed(&client, key, secs(3), || guard.check().unwrap()).await;
    }
    drop(crowd);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_channel_that_is_open_at_one_end_only_is_noticed_and_reopened() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let holder = Client::connect(server.url()).await.unwrap();
    let waiter = Client::connect(proxy.url()).await.unwrap();
    hand_over(&holder, waiter.mutex("a")).await;
    assert_eq!(server.command_calls("subscribe"), 1);
    // A message is lost on the way, so that its connection stays mute for ever; the other one,
    // which nothing passes meanwhile, does not notice.
    proxy.set(Fault::BlackHole);
    let channel = server.cli(&["PUBSUB", "CHANNELS", "leasehold:wake:*"]);
    assert_eq!(server.cli(&["PUBLISH", &channel, "anything"]), "1");
    proxy.wait_for(|stats| stats.replies_dropped > 0).await;
    proxy.set(Fault::Pass);
    patiently("another subscription", async {
        while server.command_calls("subscribe") == 1 {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
    for _ in 0..3 {
        hand_over(&holder, waiter.mutex("a")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn grants_without_a_notification_make_waiters_poll_until_one_comes() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let (holder, waiter) = (world.client(), world.client_of(Arc::new(faults.clone())));
    let took = async || {
        let guard = holder.mutex("a").ttl(secs(600)).lock().await.unwrap();
        let mutex = waiter.mutex("a").ttl(secs(600));
        let waiting_for_it = tokio::spawn(async move { mutex.lock().await.unwrap() });
        waiting(&holder, "a", 1).await;
        // It knows its position, and goes on at its own pace.
        tokio::time::sleep(secs(1)).await;
        // A waiter that would poll in this millisecond by chance has done so before the release,
        // and polls next in a later one.
        for _ in 0..100 {
            tokio::time::advance(Duration::from_nanos(10)).await;
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let guard = waiting_for_it.await.unwrap();
        let took = released.elapsed();
        guard.release().await.unwrap();
        took
    };
    assert!(took().await < ms(2));
    faults.messages(Messages::Vanish);
    for _ in 0..3 {
        assert!(took().await > secs(1), "its next heartbeat says so");
    }
    for _ in 0..3 {
        let took = took().await;
        assert!(took > ms(0) && took < ms(400), "{took:?}");
    }
    faults.messages(Messages::Arrive);
    took().await;
    for _ in 0..3 {
        assert!(took().await < ms(2));
    }
}
