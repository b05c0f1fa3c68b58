//! What nodes say to each other about their stores, as bytes.
