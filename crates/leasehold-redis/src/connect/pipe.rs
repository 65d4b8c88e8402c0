//! Sends many requests over one connection, and gives each its answer.
//!
//! A caller writes its request to the socket at once, and leaves to a task, the driver, what the
//! socket does not take. The driver reads, and wakes each caller when its answer is there. So a
//! request wakes one task on its way back and none on its way there. The client library's
//! connection hands requests to a task as well.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, RedisFuture, RedisResult, Value};

use crate::connect::dial::Socket;
use crate::connect::resp::{Inbox, Outbox, Write};

/// The connection ends if this many bytes wait for the socket. The requests of callers that still
/// wait for their answers take far less.
const UNSENT_MAX: usize = 16 * 1024 * 1024;

/// Above this number the memory of places is freed when all are free.
const PLACES_KEPT: usize = 1024;

/// The longest answer, in bytes. A lock with a hundred thousand waiters fits.
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
}

struct State {
    /// `None` once the connection has ended.
    socket: Option<Socket>,
    /// Counts the connection until it has ended.
    counted: Option<Arc<()>>,
    unsent: Outbox,
    driver: Option<Waker>,
    /// The places of the unanswered requests, in the order in which they were sent.
    asked: VecDeque<usize>,
    /// One for each request under way. A caller that is not polled keeps only its own.
    places: Vec<Place>,
    free: Vec<usize>,
}

enum Place {
    Free,
    Waits(Option<Waker>),
    Answered(RedisResult<Value>),
    /// The caller no longer waits for the answer.
    Left,
}

impl Pipe {
    /// A connection over an idle socket, and the driver that must run for it.
    pub(crate) fn new(socket: Socket) -> (Self, Driver) {
        let state = State {
            socket: Some(socket),
            counted: None,
            unsent: Outbox::default(),
            driver: None,
            asked: VecDeque::new(),
            places: Vec::new(),
            free: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: AtomicBool::new(false) });
        let inbox = Inbox::new(ANSWER_MAX);
        let driver = Driver { shared: Arc::clone(&shared), inbox, told: Vec::new() };
        (Self { shared }, driver)
    }

    /// Keeps this until the connection ends.
    pub(crate) fn keep(&self, counted: Arc<()>) {
        self.shared.state().counted = Some(counted);
    }

    /// Has the connection end by a reset, so the system drops what it could not send. Until then,
    /// callers can still get their answers.
    pub(crate) fn keep_nothing(&self) {
        if let Some(socket) = &self.shared.state().socket {
            socket.keep_nothing();
        }
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// Sends a request, and returns its answer. The first poll sends it, in order with other
    /// requests. If the future is dropped after that, the request is still sent and its answer
    /// ignored.
    pub(crate) async fn ask(&self, command: &impl Write) -> RedisResult<Value> {
        let place = self.shared.send(|state| state.enqueue(command))?;
        Reply { shared: &self.shared, place: Some(place) }.told().await
    }

    /// Sends requests, one behind the other, and returns their answers.
    pub(crate) async fn ask_all(&self, commands: &[impl Write]) -> Vec<RedisResult<Value>> {
        let reply = |place| Reply { shared: &self.shared, place: Some(place) };
        let sent: Vec<_> = self.shared.send(|state| {
            commands.iter().map(|command| state.enqueue(command).map(reply)).collect()
        });
        let mut answers = Vec::with_capacity(sent.len());
        for reply in sent {
            answers.push(match reply {
                Ok(reply) => reply.told().await,
                Err(error) => Err(error),
            });
        }
        answers
    }
}

/// For code that sends single commands over any connection. It refuses pipelines, because a
/// pipeline of the library may hold more than commands.
impl ConnectionLike for Pipe {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.ask(cmd))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a redis::Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let why = (redis::ErrorKind::Client, "no pipelines are sent here");
        Box::pin(std::future::ready(Err(why.into())))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues requests, and sends what the socket takes. The driver sends the rest; if it does not
    /// run yet, it sends all.
    fn send<T>(&self, enqueue: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let sent = enqueue(&mut state);
        let Some(driver) = state.driver.take() else { return sent };
        let was_blocked = state.unsent.is_blocked();
        let written = match state.unsent.len() {
            UNSENT_MAX.. => Err(io::ErrorKind::TimedOut.into()),
            _ if was_blocked => Ok(()),
            _ => state.write(&mut Context::from_waker(&driver)),
        };
        let told = written.map_err(|error| self.end(&mut state, error.into())).err();
        // The socket may be blocked only until this task yields, so the driver tries again.
        let wakes = told.is_some() || !was_blocked && state.unsent.is_blocked();
        let now = wakes.then(|| driver.clone());
        state.driver = Some(driver);
        drop(state);
        told.into_iter().flatten().chain(now).for_each(Waker::wake);
        sent
    }

    /// Ends the connection, and answers all requests with the reason. Returns the tasks to wake.
    fn end(&self, state: &mut State, why: RedisError) -> Vec<Waker> {
        self.ended.store(true, Ordering::Release);
        state.socket = None;
        state.counted = None;
        // A waker keeps the runtime's file descriptors open.
        state.driver = None;
        state.unsent = Outbox::default();
        let mut told = Vec::new();
        while state.answer(Err(why.clone()), &mut told) {}
        told
    }
}

impl State {
    /// Puts a request behind all others; returns its place.
    fn enqueue(&mut self, command: &impl Write) -> RedisResult<usize> {
        // Not the reason that ended the connection, which may leave open whether this request was
        // sent.
        if self.socket.is_none() {
            return Err(gone());
        }
        self.unsent.push(command);
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::Free);
            self.places.len().saturating_sub(1)
        });
        if let Some(its) = self.places.get_mut(place) {
            *its = Place::Waits(None);
        }
        self.asked.push_back(place);
        Ok(place)
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
                if self.asked.is_empty() && inbox.has_answer() {
                    return Poll::Ready(unasked());
                }
                match inbox.take() {
                    Ok(None) => break,
                    // Pushed by the server without a request.
                    Ok(Some(Value::Push { .. })) => {}
                    Ok(Some(value)) => {
                        if !self.answer(Ok(value), told) {
                            return Poll::Ready(unasked());
                        }
                    }
                    Err(error) => return Poll::Ready(error),
                }
            }
        }
    }

    /// Passes an answer to the oldest request. Returns whether there was one.
    fn answer(&mut self, answer: RedisResult<Value>, told: &mut Vec<Waker>) -> bool {
        let Some(place) = self.asked.pop_front() else { return false };
        match self.places.get_mut(place) {
            Some(its @ Place::Waits(_)) => {
                if let Place::Waits(waker) = std::mem::replace(its, Place::Answered(answer)) {
                    told.extend(waker);
                }
            }
            _ => drop(self.leave(place)),
        }
        true
    }

    /// Makes a place free; returns what was in it.
    fn leave(&mut self, place: usize) -> Option<Place> {
        let its = std::mem::replace(self.places.get_mut(place)?, Place::Free);
        self.free.push(place);
        if self.free.len() == self.places.len() && self.places.len() > PLACES_KEPT {
            (self.places, self.free, self.asked) = Default::default();
        }
        Some(its)
    }
}

/// The answer to a request that was sent.
struct Reply<'a> {
    shared: &'a Shared,
    /// `None` once the caller has the answer.
    place: Option<usize>,
}

impl Reply<'_> {
    async fn told(mut self) -> RedisResult<Value> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<RedisResult<Value>> {
        let Some(place) = self.place else { return Poll::Pending };
        let mut state = self.shared.state();
        let mut before = None;
        let answer = match state.places.get_mut(place) {
            Some(Place::Answered(_)) => match state.leave(place) {
                Some(Place::Answered(answer)) => Some(answer),
                _ => None,
            },
            Some(Place::Waits(waker)) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    before = waker.replace(cx.waker().clone());
                }
                None
            }
            Some(Place::Free | Place::Left) | None => None,
        };
        drop(state);
        // Dropped outside the lock: it may end a task, whose other replies then lock the state.
        drop(before);
        match answer {
            Some(answer) => {
                self.place = None;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut state = self.shared.state();
        let before = match state.places.get_mut(place) {
            Some(its @ Place::Waits(_)) => Some(std::mem::replace(its, Place::Left)),
            _ => state.leave(place),
        };
        drop(state);
        drop(before);
    }
}

/// Reads answers until the connection ends. Dropping it ends the connection.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    inbox: Inbox,
    /// The tasks to wake. It is a field so that its memory is used again.
    told: Vec<Waker>,
}

impl Driver {
    pub(crate) async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self { shared, inbox, told } = self;
        let mut state = shared.state();
        let ended = state.drive(inbox, told, cx).map(|why| shared.end(&mut state, why));
        drop(state);
        // Outside the lock, because a waker may run any code.
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

/// The reason to end a connection that sent an answer without a request.
fn unasked() -> RedisError {
    (redis::ErrorKind::Parse, "the server sent an answer without a request").into()
}

/// The error for requests to a connection that has ended.
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
    async fn each_gets_its_own_answer_whichever_leaves_and_however_little_goes_at_once() {
        for (room, piece) in [(7, 1), (64, 3), (100_000, 100)] {
            let (pipe, server) = connected(room);
            drop(tokio::spawn(echo(server, piece)));
            let callers = (0..16_i64).map(|caller| {
                let pipe = pipe.clone();
                tokio::spawn(async move {
                    for turn in 0..100 {
                        let number = caller * 1000 + turn;
                        match turn % 4 {
                            // Polled a few times and dropped.
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
            assert!(state.asked.is_empty() && state.free.len() == state.places.len());
        }
    }

    #[tokio::test]
    async fn an_end_is_reported_to_all_callers_and_to_all_newcomers() {
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
        let state = pipe.shared.state();
        assert!(state.asked.is_empty() && state.free.len() == state.places.len());
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
        let attributes = "|1\r\n+k\r\n:1\r\n".repeat(200);
        let begun = ["*100000000\r\n:1\r\n", "$1000", "HTTP/1.1 400 Bad Request\r\n"];
        for said in begun.into_iter().chain([":1\r\n", &attributes]) {
            let (pipe, mut server) = connected(10_000);
            server.write_all(said.as_bytes()).await.unwrap();
            let mut told = Vec::new();
            let end = timeout(Duration::from_secs(60), server.read_to_end(&mut told));
            end.await.unwrap().unwrap();
            assert!(pipe.has_ended() && told.is_empty(), "{said}");
            assert!(pipe.ask(&request(1)).await.is_err_and(|error| error.is_io_error()));
        }
    }

    #[tokio::test]
    async fn garbage_instead_of_an_answer_is_reported_as_that() {
        let (pipe, mut server) = connected(1000);
        server.write_all(b"-ERR no\r\nHTTP/1.1 400 Bad Request\r\n").await.unwrap();
        let answers = pipe.ask_all(&[request(1), request(2)]).await;
        assert!(matches!(&answers[0], Ok(Value::ServerError(_))), "{answers:?}");
        assert_eq!(answers[1].as_ref().unwrap_err().kind(), redis::ErrorKind::Parse);
    }

    #[tokio::test]
    async fn news_without_a_request_are_no_answers() {
        let (pipe, mut server) = connected(1000);
        server.write_all(b">2\r\n+invali").await.unwrap();
        tokio::task::yield_now().await;
        server.write_all(b"date\r\n*0\r\n:1\r\n").await.unwrap();
        assert_eq!(pipe.ask(&request(1)).await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_keeps_its_own_answer_and_nothing_else() {
        let (pipe, server) = connected(1000);
        drop(tokio::spawn(echo(server, 100)));
        let first = request(1);
        let mut idle = std::pin::pin!(pipe.ask(&first));
        assert!(idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for number in 2..2000 {
            assert_eq!(pipe.ask(&request(number)).await.unwrap(), Value::Int(number));
        }
        assert_eq!(pipe.shared.state().places.len(), 2);
        assert_eq!(idle.await.unwrap(), Value::Int(1));
    }

    #[tokio::test]
    async fn what_is_sent_is_not_kept_and_what_can_not_be_sent_ends_the_connection() {
        let (pipe, mut server) = connected(16 * 1024);
        let mut large = cmd("ECHO");
        large.arg(vec![b'x'; 100_000]);
        let (large, mut callers) = (Arc::new(large), tokio::task::JoinSet::new());
        for number in 0..100 {
            let (its, large) = (pipe.clone(), Arc::clone(&large));
            callers.spawn(async move { its.ask(&*large).await });
            // The socket takes bytes all the time, and the memory of sent ones is freed.
            let mut some = vec![0; if number < 50 { 100_000 } else { 1 }];
            tokio::task::yield_now().await;
            server.read_exact(&mut some).await.unwrap();
            let state = pipe.shared.state();
            if number < 50 {
                assert!(state.unsent.room() < 500_000, "{} at {number}", state.unsent.room());
            }
        }
        assert!(!pipe.has_ended());
        for _ in 0..200 {
            let (pipe, large) = (pipe.clone(), Arc::clone(&large));
            callers.spawn(async move { pipe.ask(&*large).await });
        }
        while let Some(answer) =
            timeout(Duration::from_secs(60), callers.join_next()).await.unwrap()
        {
            assert!(answer.unwrap().is_err());
        }
        assert!(pipe.has_ended() && pipe.shared.state().unsent.room() == 0);
    }
}
