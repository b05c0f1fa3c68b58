//! Tracepoints and counters of a node's processes, in shared memory.
//!
//! * [`event!`] records an event at a [`Point`] if that point is switched on; otherwise the macro
//!   costs a load and a branch. Points are switched one by one, for all processes of the node at
//!   once, by one byte per point in shared memory ([`shared`]).
//! * An event goes into the process's [`ring`], a file in shared memory. The ring has the newest
//!   events, also after the process was killed.
//! * [`count`] counts operations, bytes, errors and time by kind of [`Operation`], always.
//! * Time is measured in ticks of the cheapest clock ([`clock`]).
//!
//! All of this runs inside any program. Tracing takes no lock, allocates no memory except to make a
//! ring, and may be interrupted by a signal handler at any instruction. Without a pool, the shared
//! memory is zeroed memory of this process: everything is off.

pub mod block;
pub mod calls;
pub mod clock;
pub mod count;
pub mod points;
mod process;
pub mod read;
pub mod ring;
pub mod shared;
mod thread;

pub use block::Operation;
pub use points::Point;
pub use process::{Attached, attach, forked};
pub use shared::is_on;
pub use thread::{adopt_request, enter, parts, request, request_once};

/// Records an event at `point` if the point is on. The event has up to four fields, each cast to
/// `u64`.
#[macro_export]
macro_rules! event {
    ($point:ident $(, $field:expr)* $(,)?) => {
        if $crate::is_on($crate::Point::$point) {
            const { assert!($crate::points::POINTS[$crate::Point::$point as usize].fields.len()
                == <[&str]>::len(&[$(stringify!($field)),*]), "as many fields as the point has") };
            $crate::ring::record($crate::Point::$point, &[$($field as u64),*]);
        }
    };
}

/// As [`event!`], with a text (a name or a path) after the fields, of which the first 48 bytes are
/// recorded.
#[macro_export]
macro_rules! event_of {
    ($point:ident, $text:expr $(, $field:expr)* $(,)?) => {
        if $crate::is_on($crate::Point::$point) {
            const { assert!($crate::points::POINTS[$crate::Point::$point as usize].fields.len()
                == <[&str]>::len(&[$(stringify!($field)),*]), "as many fields as the point has") };
            $crate::ring::record_text($crate::Point::$point, &[$($field as u64),*], $text);
        }
    };
}

/// Evaluates `$f` between an event at `$enter` (with these fields) and an event at `$exit`, whose
/// only field is the errno of the result, or 0. If there is a text, the first event has it.
#[macro_export]
macro_rules! span {
    ($enter:ident, $exit:ident, $text:expr, [$($field:expr),* $(,)?], $f:expr) => {{
        $crate::event_of!($enter, $text $(, $field)*);
        let result = $f;
        $crate::event!($exit, $crate::points::outcome(&result));
        result
    }};
    ($enter:ident, $exit:ident, [$($field:expr),* $(,)?], $f:expr) => {{
        $crate::event!($enter $(, $field)*);
        let result = $f;
        $crate::event!($exit, $crate::points::outcome(&result));
        result
    }};
}
