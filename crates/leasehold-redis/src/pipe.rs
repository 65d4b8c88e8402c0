//! Many requests over one connection, answered in the order in which they were sent.
//!
//! A caller writes its request to the socket at once, and leaves to a task, the driver, what the socket
//! does not take. The driver reads, and wakes each caller when its answer is there. So a request wakes
//! one task on its way back and none on its way there; the client library's connection, which hands
//! requests to a task as well, costs twice as much (docs/performance.md).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, RedisFuture, RedisResult, Value};
use tokio::sync::Notify;

use crate::dial::Socket;
use crate::resp::{Inbox, Outbox, Write};

/// Bytes that wait for the socket, from which on callers wait too.
const UNSENT_MAX: usize = 256 * 1024;

/// The longest answer: what a lock with a hundred thousand waiters is, and more.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// A connection whose requests may be under way at the same time.
#[derive(Clone)]
pub(crate) struct Pipe {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Set under the lock, and read without.
    ended: AtomicBool,
    /// Callers that wait for room, and their turns: requests keep the order of their callers.
    crowd: AtomicUsize,
    turns: tokio::sync::Mutex<()>,
    room: Notify,
}

struct State {
    /// There until the connection has ended.
    socket: Option<Socket>,
    unsent: Outbox,
    driver: Option<Waker>,
    /// Requests that are not told of their answer yet, in order.
    asked: VecDeque<Asked>,
    /// The number of the first of them.
    first: u64,
    /// The number of the one that is answered next.
    next: u64,
}

enum Asked {
    Waits(Option<Waker>),
    Answered(RedisResult<Value>),
    /// Nobody waits for the answer any more.
    Left,
    /// Its caller has the answer, or nobody wants it.
    Done,
}

impl Pipe {
    /// A connection over a socket on which nothing is under way, and what drives it.
    pub(crate) fn new(socket: Socket) -> (Self, Driver) {
        let state = State {
            socket: Some(socket),
            unsent: Outbox::default(),
            driver: None,
            asked: VecDeque::new(),
            first: 0,
            next: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            crowd: AtomicUsize::new(0),
            turns: tokio::sync::Mutex::new(()),
            room: Notify::new(),
        });
        let inbox = Inbox::new(ANSWER_MAX);
        let driver = Driver { shared: Arc::clone(&shared), inbox, told: Vec::new() };
        (Self { shared }, driver)
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Sends a request, and returns its answer. It is sent, and keeps its place, with the first poll,
    /// but where very much waits to be sent. Dropped after that, it is sent and its answer is left.
    pub(crate) async fn ask(&self, command: &impl Write) -> RedisResult<Value> {
        let number = self.send(|state| state.enqueue(command)).await?;
        Reply { shared: &self.shared, number: Some(number) }.told().await
    }

    /// Sends requests, one behind the other, and returns their answers.
    pub(crate) async fn ask_all(&self, commands: &[impl Write]) -> Vec<RedisResult<Value>> {
        let enqueue = |state: &mut State| -> Vec<_> {
            commands.iter().map(|command| state.enqueue(command)).collect()
        };
        let reply = |number| Reply { shared: &self.shared, number: Some(number) };
        // Each knows of its answer from now on, so that none is taken for another's.
        let sent = self.send(enqueue).await.into_iter().map(|number| number.map(reply));
        let sent: Vec<_> = sent.collect();
        let mut answers = Vec::with_capacity(sent.len());
        for reply in sent {
            answers.push(match reply {
                Ok(reply) => reply.told().await,
                Err(error) => Err(error),
            });
        }
        answers
    }

    /// Puts requests behind the others, and sends what the socket takes.
    async fn send<T>(&self, enqueue: impl Fn(&mut State) -> T) -> T {
        if let Some(sent) = self.shared.send_at_once(&enqueue) {
            return sent;
        }
        let _turn = self.turn().await;
        self.shared.send(self.shared.state(), enqueue)
    }

    /// Waits until less waits to be sent; the others stay behind until this is dropped.
    async fn turn(&self) -> (InCrowd<'_>, tokio::sync::MutexGuard<'_, ()>) {
        let shared = &*self.shared;
        let in_crowd = InCrowd::enter(&shared.crowd);
        let turn = shared.turns.lock().await;
        loop {
            let room = shared.room.notified();
            if !shared.state().is_full() {
                return (in_crowd, turn);
            }
            room.await;
        }
    }
}

impl ConnectionLike for Pipe {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.ask(cmd))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let commands: Vec<_> = pipeline.cmd_iter().cloned().collect();
            let answers = self.ask_all(&commands).await;
            answers.into_iter().skip(offset).take(count).collect()
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Counts a caller among those who wait for room.
struct InCrowd<'a>(&'a AtomicUsize);

impl<'a> InCrowd<'a> {
    fn enter(crowd: &'a AtomicUsize) -> Self {
        crowd.fetch_add(1, Ordering::AcqRel);
        Self(crowd)
    }
}

impl Drop for InCrowd<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if nobody has to wait for it.
    fn send_at_once<T>(&self, enqueue: impl FnOnce(&mut State) -> T) -> Option<T> {
        if self.crowd.load(Ordering::Acquire) > 0 {
            return None;
        }
        let state = self.state();
        if state.is_full() { None } else { Some(self.send(state, enqueue)) }
    }

    fn send<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        enqueue: impl FnOnce(&mut State) -> T,
    ) -> T {
        let sent = enqueue(&mut state);
        self.flush(state);
        sent
    }

    /// Sends what is unsent, if the driver is there to go on with it.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        let Some(driver) = state.driver.take() else { return };
        if state.unsent.is_blocked() {
            state.driver = Some(driver);
        } else {
            let written = state.write(&mut Context::from_waker(&driver));
            if let Err(error) = written {
                let told = self.end(&mut state, error.into());
                drop(state);
                told.into_iter().for_each(Waker::wake);
                driver.wake();
            } else {
                state.driver = Some(driver);
            }
        }
    }

    /// Ends the connection, and answers all with the reason; returns whom to wake.
    fn end(&self, state: &mut State, why: RedisError) -> Vec<Waker> {
        self.ended.store(true, Ordering::Release);
        state.socket = None;
        state.unsent = Outbox::default();
        state.next = state.first.saturating_add(state.asked.len() as u64);
        let mut told = Vec::new();
        for asked in &mut state.asked {
            match std::mem::replace(asked, Asked::Done) {
                Asked::Waits(waker) => {
                    *asked = Asked::Answered(Err(why.clone()));
                    told.extend(waker);
                }
                Asked::Left | Asked::Done => {}
                answered @ Asked::Answered(_) => *asked = answered,
            }
        }
        state.forget_done();
        self.room.notify_waiters();
        told
    }
}

impl State {
    fn is_full(&self) -> bool {
        self.unsent.len() >= UNSENT_MAX
    }

    /// Puts a request behind all others; returns its number.
    fn enqueue(&mut self, command: &impl Write) -> RedisResult<u64> {
        // Whatever ended it, nothing of this request is sent.
        if self.socket.is_none() {
            return Err(gone());
        }
        self.unsent.push(command);
        let number = self.first.saturating_add(self.asked.len() as u64);
        self.asked.push_back(Asked::Waits(None));
        Ok(number)
    }

    /// Sends as much as the socket takes.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match &mut self.socket {
            Some(socket) => self.unsent.send(cx, Pin::new(socket)),
            None => Ok(()),
        }
    }

    /// Writes and reads what there is; ready with the reason when the connection has ended.
    fn drive(
        &mut self,
        inbox: &mut Inbox,
        told: &mut Vec<Waker>,
        cx: &mut Context<'_>,
    ) -> Poll<RedisError> {
        if !self.driver.as_ref().is_some_and(|driver| driver.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
        if let Err(error) = self.write(cx) {
            return Poll::Ready(error.into());
        }
        loop {
            let Some(socket) = &mut self.socket else { return Poll::Ready(gone()) };
            match inbox.poll_fill(cx, Pin::new(socket)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(error.into()),
                Poll::Ready(Ok(())) => {}
            }
            loop {
                match inbox.take() {
                    Ok(None) => break,
                    // Nobody asked for it.
                    Ok(Some(Value::Push { .. })) => {}
                    Ok(Some(value)) => {
                        if !self.answer(value, told) {
                            return Poll::Ready(unasked());
                        }
                    }
                    Err(error) => return Poll::Ready(error),
                }
            }
            if self.all_answered() && inbox.has_answer() {
                return Poll::Ready(unasked());
            }
        }
    }

    /// Gives an answer to whom it is for; returns whether anybody was to be answered.
    fn answer(&mut self, value: Value, told: &mut Vec<Waker>) -> bool {
        let asked = self.position(self.next).and_then(|at| self.asked.get_mut(at));
        let Some(asked) = asked else { return false };
        self.next = self.next.saturating_add(1);
        match std::mem::replace(asked, Asked::Done) {
            Asked::Waits(waker) => {
                *asked = Asked::Answered(Ok(value));
                told.extend(waker);
            }
            Asked::Left | Asked::Done | Asked::Answered(_) => self.forget_done(),
        }
        true
    }

    fn all_answered(&self) -> bool {
        self.position(self.next).is_none_or(|at| at >= self.asked.len())
    }

    fn position(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    fn forget_done(&mut self) {
        while let Some(Asked::Done) = self.asked.front() {
            self.asked.pop_front();
            self.first = self.first.saturating_add(1);
        }
    }
}

/// The answer to a request that was sent.
struct Reply<'a> {
    shared: &'a Shared,
    /// Nothing once it was told.
    number: Option<u64>,
}

impl Reply<'_> {
    async fn told(mut self) -> RedisResult<Value> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        let Some(number) = self.number else { return Poll::Pending };
        let mut state = self.shared.state();
        let at = state.position(number);
        let Some(asked) = at.and_then(|at| state.asked.get_mut(at)) else { return Poll::Pending };
        match asked {
            Asked::Waits(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    let before = waker.replace(cx.waker().clone());
                    // It may be the last of a task that has another reply.
                    drop(state);
                    drop(before);
                }
                Poll::Pending
            }
            Asked::Left | Asked::Done => Poll::Pending,
            Asked::Answered(_) => {
                let asked = std::mem::replace(asked, Asked::Done);
                state.forget_done();
                drop(state);
                self.number = None;
                match asked {
                    Asked::Answered(answer) => Poll::Ready(answer),
                    Asked::Waits(_) | Asked::Left | Asked::Done => Poll::Pending,
                }
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.shared.state();
        let at = state.position(number);
        let Some(asked) = at.and_then(|at| state.asked.get_mut(at)) else { return };
        let left = match asked {
            Asked::Waits(_) => Asked::Left,
            Asked::Answered(_) | Asked::Left | Asked::Done => Asked::Done,
        };
        let before = std::mem::replace(asked, left);
        state.forget_done();
        drop(state);
        drop(before);
    }
}

/// Reads answers until the connection ends, which it does with this, too.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    inbox: Inbox,
    /// Whom to wake, kept for its room.
    told: Vec<Waker>,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { shared, inbox, told } = self;
        let mut state = shared.state();
        let was_full = state.is_full();
        let ended = state.drive(inbox, told, cx).map(|why| shared.end(&mut state, why));
        if was_full && !state.is_full() {
            shared.room.notify_waiters();
        }
        drop(state);
        // What is woken may do anything, and nothing is locked.
        told.drain(..).for_each(Waker::wake);
        ended.map(|told| told.into_iter().for_each(Waker::wake))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let told = self.shared.end(&mut self.shared.state(), gone());
        told.into_iter().for_each(Waker::wake);
    }
}

/// Why a connection can't be used any more on which an answer came to nothing.
fn unasked() -> RedisError {
    (redis::ErrorKind::Parse, "the server answers what it was not asked").into()
}

/// Why a connection that is not there any more can't be used.
fn gone() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::cmd;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    /// A connection, and the server's end of it.
    fn connected(room: usize) -> (Pipe, DuplexStream) {
        let (ours, theirs) = duplex(room);
        let (pipe, driver) = Pipe::new(Socket::new(Box::new(ours)));
        drop(tokio::spawn(driver.run()));
        (pipe, theirs)
    }

    /// Answers each request `ECHO number` with the number, in pieces of some length.
    async fn echo(mut server: DuplexStream, piece: usize) {
        let mut inbox = Inbox::new(ANSWER_MAX);
        loop {
            while let Some(value) = inbox.take().unwrap() {
                let Value::Array(parts) = value else { panic!("{value:?}") };
                let Some(Value::BulkString(number)) = parts.last() else { panic!("{parts:?}") };
                let answer = format!(":{}\r\n", String::from_utf8_lossy(number));
                for piece in answer.as_bytes().chunks(piece) {
                    if server.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            }
            let filled = std::future::poll_fn(|cx| inbox.poll_fill(cx, Pin::new(&mut server)));
            if filled.await.is_err() {
                return;
            }
        }
    }

    fn request(number: i64) -> Cmd {
        let mut request = cmd("ECHO");
        request.arg(number);
        request
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn each_gets_its_own_answer_whoever_gives_up_and_however_little_goes_at_once() {
        for (room, piece) in [(7, 1), (64, 3), (100_000, 100)] {
            let (pipe, server) = connected(room);
            drop(tokio::spawn(echo(server, piece)));
            let callers = (0..16_i64).map(|caller| {
                let pipe = pipe.clone();
                tokio::spawn(async move {
                    for turn in 0..100 {
                        let number = caller * 1000 + turn;
                        match turn % 4 {
                            // Polled once, or a few times, and left.
                            0 => {
                                let left = request(number);
                                let left = pipe.ask(&left);
                                let some = async {
                                    for _ in 0..turn % 7 {
                                        tokio::task::yield_now().await;
                                    }
                                };
                                tokio::select! { biased; _ = left => {} () = some => {} }
                            }
                            1 => {
                                let both = [request(number), request(-number)];
                                let answers = pipe.ask_all(&both).await;
                                let answers: Result<Vec<Value>, _> = answers.into_iter().collect();
                                let expected = [Value::Int(number), Value::Int(-number)];
                                assert_eq!(answers.unwrap(), expected);
                            }
                            _ => {
                                let answer = pipe.ask(&request(number)).await.unwrap();
                                assert_eq!(answer, Value::Int(number));
                            }
                        }
                    }
                })
            });
            let callers: Vec<_> = callers.collect();
            for caller in callers {
                timeout(Duration::from_secs(60), caller).await.unwrap().unwrap();
            }
            let state = pipe.shared.state();
            assert!(state.asked.len() <= 16, "{} requests are remembered", state.asked.len());
        }
    }

    #[tokio::test]
    async fn an_end_is_told_to_all_who_wait_and_to_all_who_come() {
        let (pipe, mut server) = connected(1000);
        let waits = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask(&request(1)).await }
        });
        let answered = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask_all(&[request(2), request(3)]).await }
        });
        tokio::task::yield_now().await;
        server.read_u8().await.unwrap();
        server.write_all(b":1\r\n:2\r\n").await.unwrap();
        drop(server);
        assert_eq!(waits.await.unwrap().unwrap(), Value::Int(1));
        let answers = answered.await.unwrap();
        assert_eq!(answers[0].as_ref().unwrap(), &Value::Int(2), "it was answered before");
        assert!(answers[1].as_ref().is_err_and(RedisError::is_io_error), "{answers:?}");
        assert!(pipe.has_ended());
        assert!(pipe.ask(&request(4)).await.is_err_and(|error| error.is_io_error()));
        assert!(pipe.shared.state().asked.is_empty());
    }

    #[tokio::test]
    async fn a_driver_that_is_dropped_ends_the_connection() {
        let (ours, mut theirs) = duplex(1000);
        let (pipe, driver) = Pipe::new(Socket::new(Box::new(ours)));
        let driver = tokio::spawn(driver.run());
        let waits = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask(&request(1)).await }
        });
        tokio::task::yield_now().await;
        driver.abort();
        assert!(waits.await.unwrap().is_err());
        assert!(pipe.has_ended());
        let mut said = Vec::new();
        theirs.read_to_end(&mut said).await.unwrap();
        assert_eq!(
            said,
            request(1).get_packed_command(),
            "it was sent once, and the socket closed"
        );
    }

    #[tokio::test]
    async fn an_answer_to_nothing_ends_the_connection() {
        for said in [":1\r\n", "*100000000\r\n:1\r\n", "$1000", "HTTP/1.1 400 Bad Request\r\n"] {
            let (pipe, mut server) = connected(1000);
            server.write_all(said.as_bytes()).await.unwrap();
            let mut told = Vec::new();
            server.read_to_end(&mut told).await.unwrap();
            assert!(pipe.has_ended() && told.is_empty(), "{said}");
            assert!(pipe.ask(&request(1)).await.is_err_and(|error| error.is_io_error()));
        }
    }

    #[tokio::test]
    async fn garbage_in_the_place_of_an_answer_is_told_as_that() {
        let (pipe, mut server) = connected(1000);
        server.write_all(b"-ERR no\r\nHTTP/1.1 400 Bad Request\r\n").await.unwrap();
        let answers = pipe.ask_all(&[request(1), request(2)]).await;
        assert!(matches!(&answers[0], Ok(Value::ServerError(_))), "{answers:?}");
        assert_eq!(answers[1].as_ref().unwrap_err().kind(), redis::ErrorKind::Parse);
    }

    #[tokio::test]
    async fn news_that_nobody_asked_for_are_no_answers() {
        let (pipe, mut server) = connected(1000);
        server.write_all(b">2\r\n+invali").await.unwrap();
        tokio::task::yield_now().await;
        server.write_all(b"date\r\n*0\r\n:1\r\n").await.unwrap();
        assert_eq!(pipe.ask(&request(1)).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn callers_wait_in_turn_while_very_much_is_unsent() {
        let (pipe, server) = connected(16);
        let mut large = cmd("ECHO");
        large.arg(vec![b'x'; UNSENT_MAX]).arg(0);
        let asked = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask(&large).await }
        });
        tokio::task::yield_now().await;
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..50 {
            let (pipe, told) = (pipe.clone(), told.clone());
            drop(tokio::spawn(async move {
                let answer = pipe.ask(&request(number)).await.unwrap();
                told.send(answer).unwrap();
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(pipe.shared.crowd.load(Ordering::Acquire), 50);
        assert!(pipe.shared.state().unsent.len() < UNSENT_MAX + 100);
        drop(tokio::spawn(echo(server, 100)));
        assert_eq!(asked.await.unwrap().unwrap(), Value::Int(0));
        for number in 0..50 {
            assert_eq!(order.recv().await, Some(Value::Int(number)));
        }
        assert_eq!(pipe.shared.crowd.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_told_of_the_end() {
        let (pipe, server) = connected(16);
        let mut large = cmd("ECHO");
        large.arg(vec![b'x'; UNSENT_MAX]);
        let asked = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask(&large).await }
        });
        tokio::task::yield_now().await;
        let behind = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ask(&request(1)).await }
        });
        tokio::task::yield_now().await;
        drop(server);
        assert!(asked.await.unwrap().is_err());
        assert!(behind.await.unwrap().is_err());
    }
}
