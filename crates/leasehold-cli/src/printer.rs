//! Writes messages to stderr from a thread of its own, so that a slow reader delays no work.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::inherited;

/// What is kept for a reader that stalls; what comes after is counted only.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// What is still to be written.
struct Queue {
    messages: VecDeque<String>,
    bytes: usize,
    left_out: usize,
    /// Whether a thread writes them; it starts with the first message.
    has_writer: bool,
    /// Whether that thread is at a message.
    writing: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    messages: VecDeque::new(),
    bytes: 0,
    left_out: 0,
    has_writer: false,
    writing: false,
});
static CHANGED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn push(&mut self, message: String) {
        if self.bytes.saturating_add(message.len()) > KEPT_BYTES_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.bytes = self.bytes.saturating_add(message.len());
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<String> {
        if let Some(message) = self.messages.pop_front() {
            self.bytes = self.bytes.saturating_sub(message.len());
            return Some(message);
        }
        match std::mem::take(&mut self.left_out) {
            0 => None,
            n => Some(format!(
                "leasehold: {n} messages were left out, since standard error was not \
                               read\n"
            )),
        }
    }
}

/// Hands a message over to be written, in one write, so that messages of many processes in one log
/// don't mix.
pub(crate) fn print(message: String) {
    let mut queue = queue();
    if !queue.has_writer {
        let writer = thread::Builder::new().name("messages".to_owned()).spawn(write_all);
        if writer.is_err() {
            // Where there is no thread to be had, the message that says so is worth a wait.
            drop(queue);
            write(&message);
            return;
        }
        queue.has_writer = true;
    }
    queue.push(message);
    CHANGED.notify_all();
}

/// Writes to a terminal too that stops jobs in the background for that (`stty tostop`): a lock that
/// is held can't be renewed by a process that is stopped.
fn write(message: &str) {
    inherited::blocking(Some(libc::SIGTTOU), || {
        drop(io::stderr().lock().write_all(message.as_bytes()));
    });
}

/// Waits until everything is written, but no longer than this.
pub(crate) fn flush(within: Duration) {
    let is_busy = |queue: &mut Queue| {
        queue.has_writer && (queue.writing || !queue.messages.is_empty() || queue.left_out > 0)
    };
    drop(CHANGED.wait_timeout_while(queue(), within, is_busy));
}

#[expect(clippy::infinite_loop, reason = "it ends with the process")]
fn write_all() {
    let mut queue = queue();
    loop {
        let Some(message) = queue.pop() else {
            queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.writing = true;
        drop(queue);
        write(&message);
        queue = self::queue();
        queue.writing = false;
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_output_is_bounded_and_counted() {
        let mut queue = Queue {
            messages: VecDeque::new(),
            bytes: 0,
            left_out: 0,
            has_writer: false,
            writing: false,
        };
        for _ in 0..100 {
            queue.push("x".repeat(1024));
        }
        assert_eq!((queue.messages.len(), queue.left_out), (64, 36));
        let mut last = String::new();
        while let Some(message) = queue.pop() {
            last = message;
        }
        assert_eq!(queue.bytes, 0);
        assert!(last.contains("36 messages were left out"), "{last}");
    }
}
