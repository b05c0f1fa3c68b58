//! Mappings of pool files: they map the pages of the media's segments themselves.
//!
//! A mapping consists of one kernel mapping per extent of the file. So a mapping is coherent with
//! read and write, and with other processes. Where the file has no page (beyond its end, or in a
//! hole), an empty memfd is mapped, so that touching it raises SIGBUS; [`follow::on_fault`] then
//! maps the page if the file has one by now. A table ([`spans`]) records which file is mapped
//! where. The table's entries keep the files open as long as they are mapped.
//!
//! From the bottom to the top:
//! - `vmas.rs`: the kernel's list of mappings; `spans.rs`: the table; `shadow_copy.rs`: copies of
//!   remote files; `pages.rs`: mapping pieces of files
//! - `locked.rs`: locks the table for a call; `remote.rs`: writes back changes of shadow copies to
//!   other nodes; `follow.rs`: changes mappings when their files change
//! - `mapping.rs`: makes a mapping; `copied.rs`: makes a private copy of a remote file; `remap.rs`:
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

/// The functions that the signal handler calls before the program's handler.
pub static ON_SIGNALS: Above = Above {
    on_fault: follow::on_fault,
    is_ended_by_other: follow::is_ended_by_other,
    on_notice: follow::on_notice,
};
