//! Lock stores without a server: in memory, and for the processes of one machine.

mod memory;

pub use memory::MemoryStore;
