//! Reports and advice for people, from tracepoints and counters.
//!
//! - [`node`]: the shared memory of the nodes on this host: switching tracepoints, reading rings.
//! - [`stream`]: the compressed file of events of several nodes.
//! - [`align`]: aligning the clocks of nodes.
//! - [`collect`]: moving events from rings into a stream while programs run.
//! - [`profiles`]: named sets of tracepoints.
//! - [`totals`]: the counters of nodes and processes, as numbers to show.
//! - [`spans`]: durations of operations, from pairs of events.
//! - [`run`]: the model of a run that reports show.
//! - [`analyse`]: a run from events and counters; [`usage`]: one file; [`groups`]: files by path;
//!   [`ranges`]: ranges of bytes of a file.
//! - [`darshan`]: a run without Forebay, from the text of a Darshan log.
//! - [`advise`]: proposals of rules and settings for a run.
//! - [`html`]: a run as a page; [`compare`]: the differences of two runs; [`chart`], [`text`]:
//!   parts of pages.

pub mod advise;
pub mod align;
pub mod analyse;
pub mod chart;
pub mod collect;
pub mod compare;
pub mod darshan;
pub mod groups;
pub mod html;
pub mod node;
pub mod profiles;
pub mod ranges;
pub mod run;
pub mod spans;
pub mod stream;
pub mod text;
pub mod totals;
pub mod usage;
