//! Questions to the one task that owns the state, and its answers.
//!
//! The HTTP server holds an [`Asker`]; the owner receives each [`Query`] from the queue that it also gets its events
//! from, and answers at once from what it knows. An answer proves that the event loop turns.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::status::{Gauges, Readiness, Status};

/// How long the owner may take. Its turns last microseconds; the kubelet gives a probe one second by default
/// (`timeoutSeconds`), and the answer has to be on its way before that.
pub const ANSWER_DEADLINE: Duration = Duration::from_millis(800);

/// How many questions may wait. The server asks at most one per HTTP connection, and has at most
/// [`super::http::MAX_CONNECTIONS`] of those.
const QUEUE: usize = super::http::MAX_CONNECTIONS;

/// A question, with where to send the answer.
#[derive(Debug)]
pub enum Query {
    /// Are you there, and does detection work?
    Readiness(oneshot::Sender<Readiness>),
    /// What do you know?
    Status(oneshot::Sender<Status>),
    /// The values of a scrape.
    Gauges(oneshot::Sender<Gauges>),
}

/// The owner gave no answer in time, or is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It is stuck.
    #[error("the event loop did not turn within {} ms", ANSWER_DEADLINE.as_millis())]
    Late,
    /// It has ended.
    #[error("the event loop has ended")]
    Gone,
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Asker {
    queue: mpsc::Sender<Query>,
}

/// A queue of questions, with the asker's end and the owner's.
pub fn channel() -> (Asker, mpsc::Receiver<Query>) {
    let (queue, queries) = mpsc::channel(QUEUE);
    (Asker { queue }, queries)
}

impl Asker {
    /// Whether the event loop turns, and whether detection works.
    ///
    /// # Errors
    /// No answer within [`ANSWER_DEADLINE`].
    pub async fn readiness(&self) -> Result<Readiness, NoAnswer> {
        self.ask(Query::Readiness).await
    }

    /// Everything that `/status` tells.
    ///
    /// # Errors
    /// No answer within [`ANSWER_DEADLINE`].
    pub async fn status(&self) -> Result<Status, NoAnswer> {
        self.ask(Query::Status).await
    }

    /// The values of a scrape.
    ///
    /// # Errors
    /// No answer within [`ANSWER_DEADLINE`].
    pub async fn gauges(&self) -> Result<Gauges, NoAnswer> {
        self.ask(Query::Gauges).await
    }

    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T, NoAnswer> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.queue.send(query(reply)).await.map_err(|_| NoAnswer::Gone)?;
            answer.await.map_err(|_| NoAnswer::Gone)
        };
        tokio::time::timeout(ANSWER_DEADLINE, exchange).await.unwrap_or(Err(NoAnswer::Late))
    }
}
