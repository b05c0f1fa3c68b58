//! Mapping files of a pool: the pages of the medium's segment themselves.
//!
//! A mapping is put together from the file's extents, each mapped from the segment, so
//! that it is coherent with read and write and with other processes by nature. Where the
//! file has no page, behind its end or in a hole, lies a file without a byte, whose pages
//! are SIGBUS; [`follow::on_fault`] then maps what is there by now. Which file lies where is kept
//! in a table ([`spans`]), whose places keep their files as long as they are mapped.
//!
//! From the bottom to the top:
//! - `vmas.rs`: the kernel's view; `spans.rs`: the table; `shadow_copy.rs`: copies of files that
//!   lie on other nodes; `pages.rs`: mapping pieces
//! - `locked.rs`: the table for a call; `remote.rs`: what is written to copies gets to other nodes;
//!   `follow.rs`: what mappings show follows the files
//! - `mapping.rs`: making one; `copied.rs`: of a file on another node, privately; `remap.rs`:
//!   mremap and remap_file_pages; `calls.rs`: the system calls

mod calls;
mod copied;
mod follow;
mod locked;
mod mapping;
mod pages;
mod remap;
mod remote;
mod shadow_copy;
mod spans;
mod vmas;

use crate::program::signals::Above;

pub use calls::{madvise, mlock, mmap, mprotect, mremap, msync, munmap, remap_file_pages};
pub use follow::{before_exit, grown, resident};
pub use mapping::note_mappings;
pub use remote::{
    after_change, after_cut, after_lock, before_change, before_exec, before_read, before_write,
    sync as write_back,
};
pub use shadow_copy::sweep;
pub use spans::{after_fork, before_fork};

/// The function that the signal handler asks.
pub static ON_SIGNALS: Above = Above {
    on_fault: follow::on_fault,
    on_notice: follow::on_notice,
};
