//! Makes tokens for both stores from a block of random bytes.
//!
//! A system call for each token would take as long as the store's whole operation.
//!
//! A fork's child has a copy of the block. So each block belongs to one [`Process`], and blocks are
//! used only where forks are detected reliably. A virtual machine that is copied while it runs also
//! copies its blocks, but it copies the store as well. A store that other machines use must not
//! draw tokens here.

use std::cell::RefCell;

use leasehold_clock::Process;
use leasehold_core::{Result, Token};

/// How many tokens one system call brings.
const BLOCK: usize = 32;

#[derive(Debug)]
struct Block {
    of: Option<Process>,
    left: usize,
    tokens: [[u8; 16]; BLOCK],
}

thread_local! {
    static TOKENS: RefCell<Block> =
        const { RefCell::new(Block { of: None, left: 0, tokens: [[0; 16]; BLOCK] }) };
}

/// A token that differs from all others.
pub(crate) fn draw() -> Result<Token> {
    // A signal handler that interrupts a draw can't borrow the block, nor can a thread that is
    // ending.
    let drawn = TOKENS.try_with(|block| block.try_borrow_mut().ok()?.draw());
    drawn.ok().flatten().map_or_else(Token::generate, Ok)
}

impl Block {
    fn draw(&mut self) -> Option<Token> {
        let process = Process::current();
        if !process.is_told_from_forks() {
            return None;
        }
        if self.of != Some(process) || self.left == 0 {
            getrandom::fill(self.tokens.as_flattened_mut()).ok()?;
            self.of = Some(process);
            self.left = BLOCK;
        }
        self.left = self.left.saturating_sub(1);
        let token = std::mem::take(self.tokens.get_mut(self.left)?);
        // A signal handler may have forked meanwhile, and this process may be the child.
        process.is_current().then(|| Token::from_bytes(token))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_token_is_drawn_twice() {
        let draw = || -> Vec<Token> { (0..1_000).map(|_| draw().unwrap()).collect() };
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(draw)).collect();
        let drawn: HashSet<Token> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(drawn.len(), 4_000);
    }

    #[cfg(target_os = "linux")]
    mod forks {
        use std::fs::File;
        use std::io::{Read as _, Write as _};
        use std::os::fd::FromRawFd as _;

        use super::*;

        /// Draws a block of tokens and writes them to the pipe; makes system calls only.
        fn draw_into(mut writes: &File) -> bool {
            (0..BLOCK).all(|_| draw().is_ok_and(|token| writes.write_all(token.as_bytes()).is_ok()))
        }

        extern "C" fn borrowing(writes: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the caller waits for this function and keeps the file open.
            let writes = unsafe { &*writes.cast_const().cast::<File>() };
            libc::c_int::from(!draw_into(writes))
        }

        fn by_fork(_: &File) -> i64 {
            // SAFETY: the child draws, writes and ends.
            i64::from(unsafe { libc::fork() })
        }

        /// Bypasses the C library, which then doesn't notice the fork.
        fn by_system_call(_: &File) -> i64 {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
        }

        /// Like `vfork`: the child runs in its parent's memory while the parent is stopped.
        fn borrowing_memory(writes: &File) -> i64 {
            let mut stack = vec![0_u128; 1 << 14];
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let given = std::ptr::from_ref(writes).cast_mut().cast();
            // SAFETY: the stack is the child's until it ends, and is large enough.
            i64::from(unsafe {
                let top = stack.as_mut_ptr_range().end.cast();
                libc::clone(borrowing, top, flags, given)
            })
        }

        fn draws_its_own(start: fn(&File) -> i64) {
            // Leaves the block partly used.
            let before = draw().unwrap();
            let mut ends = [0; 2];
            // SAFETY: the array has room for two.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            // SAFETY: the pipe was made just now.
            let [mut reads, writes] = ends.map(|end| unsafe { File::from_raw_fd(end) });
            let child = start(&writes);
            if child == 0 {
                let drawn = draw_into(&writes);
                // SAFETY: ends the child.
                unsafe { libc::_exit(libc::c_int::from(!drawn)) };
            }
            let mut drawn: HashSet<[u8; 16]> =
                (0..BLOCK).map(|_| *draw().unwrap().as_bytes()).collect();
            drawn.insert(*before.as_bytes());
            drop(writes);
            let mut in_child = Vec::new();
            reads.read_to_end(&mut in_child).unwrap();
            let mut status = -1;
            let child = libc::pid_t::try_from(child).unwrap();
            // SAFETY: waits for the child above; `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            drawn.extend(in_child.as_chunks::<16>().0);
            assert_eq!(drawn.len(), 2 * BLOCK + 1);
        }

        #[test]
        fn a_fork_of_whatever_kind_draws_tokens_of_its_own() {
            for start in [by_fork, by_system_call, borrowing_memory] {
                draws_its_own(start);
                std::thread::spawn(move || draws_its_own(start)).join().unwrap();
            }
        }
    }
}
