"""The waits that lie within one another, in one table. All are in seconds. Nothing is imported here.

Whoever waits longer than the one who waits for him is killed, and what he waited for is lost. So an inner wait, with
all that comes after it, is shorter than the outer one. ``tests/`` holds the order.

The end of an allocation, from the outside in. Slurm kills a job at its time limit.

    MARGIN_S 120           the job, before its time limit: for its driver to save, and for its nodes to end
      SAVE_S 60            the job, for its driver: save the trials, write the tables, end (a longer margin gives more)
        LEAST_WAIT_S 10    the driver, for its trials: write a checkpoint after the current step (at most MOST_WAIT_S)
        AFTER_TRIALS_S 15  the driver itself, after its trials
      MARGIN_REST_S 30     what comes after the driver: nodes, requeue (at least LIMIT_REST_S 20 before the limit)
        NODES_END_S 10     the job, for its nodes
          HOLD_S 1.5       a node, for the job to say that trials still save
          RAY_END_S 3      a node, for its Ray
          FOLDER_GONE_S 2  a node, for its temporary folder to be removed while processes still die

A job that is cancelled. Slurm kills it KILL_WAIT_S after its SIGTERM, by default.

    KILL_WAIT_S 30
      KILLED_REST_S 4        of it, what comes after the driver, where the driver may save: the nodes end
      CRASH_OR_SIGNAL_S 2    the job, for Slurm's signal to explain a node that has gone
      FIRST_ANSWER_S 3       the job, for Slurm to say why it signals
      CANCELLED_SAVE_S 3     the job, for its driver
      CANCELLED_NODES_S 3    the job, for its nodes

A run without a job. Nobody kills it, so these are bounded by a person's patience alone.

    RUN_SAVE_S 30            ``train_loop/run.py`` under Ray, for its workers' checkpoint after Ctrl-C
    TRIAL_END_S 15           a trial that was stopped early, for its workers to end
    SAME_SIGNAL_S 3          a rank: within it a second signal is the same Ctrl-C, handed on by torchrun

A head of Ray that does not answer. Ray ends the driver's process RAY_ENDS_DRIVER_S after the last answer.

    RAY_ENDS_DRIVER_S 60
      HEAD_GONE_S 40         the search, for an answer, before it gives up
        UNANSWERED_LINE_S 15 before a line says that there is none
          RAY_ANSWER_S 5     one question
      LAST_SAVE_S 12         the driver's thread after that, to save; then the process ends itself

Nodes that hold no trial.

    JOINED_GRACE_S 600       a search on a cluster that was joined: another allocation may attach nodes
      WAIT_IN_JOB_S 60       a search in a job, which pays for the nodes that are left
        OWN_GRACE_S 30       a search on its own Ray, which no node ever joins
          HOPELESS_LINE_S 5  before a line says that nothing fits

Signs of life.

    STALE_S 60               a lease without a sign of life is anybody's
      RENEW_S 10             its holder says that it lives
      CLAIM_S 10             one who has claimed a dead one's lease has written its own by then
    HUNG_S 60                a node without a heartbeat is given up
      HEARTBEAT_S 5          a node's heartbeat
      HUNG_DRAIN_S 5         the job, for Ray to hear of it; nothing else is noticed meanwhile

A controller of Slurm that does not answer.

    SILENT_S 300             a job, for any answer
      COMMAND_S 30           one command
"""

from __future__ import annotations

MARGIN_S = 120
"""``--signal`` and ``--margin``: so long before its time limit a job saves and ends."""
SLURM_EARLY_S = 60.0
"""Slurm's signal may come so much before the time that was asked for (manual page sbatch(1), ``--signal``)."""
SAVE_S = 60.0
"""For the driver to save near the time limit or in a preemption's grace time."""
LEAST_WAIT_S, MOST_WAIT_S = 10.0, 600.0
"""For trials that run to stop by themselves: twice the study's longest step, within these bounds."""
AFTER_TRIALS_S = 15.0
"""For the driver itself, once its trials have ended: tables, and the end of Ray."""
MARGIN_REST_S = 30.0
"""Of the margin, what comes after the driver: its Ray, the nodes, the requeue."""
LIMIT_REST_S = 20.0
"""The same where the driver is late: it is ended so long before the time limit, whatever it was granted."""
GIVE_UP_REST_S = 5.0
"""So long before the time limit a job no longer asks a controller that does not answer."""
NODES_END_S = 10.0
"""For a job's nodes to end."""
HOLD_S = 1.5
"""From SIGTERM until a node ends itself, unless the job asks it to hold on."""
RAY_END_S = 3.0
"""For a node's Ray to end by SIGTERM."""
FOLDER_GONE_S = 2.0
"""For a private folder to be removed: processes that die may still write into it."""
LENT_LEAVE_S = 15.0
"""For the work on nodes that were lent to save itself and move, after they are drained; their job has MARGIN_S."""

KILL_WAIT_S = 30
"""Slurm's own default, from its SIGTERM to its SIGKILL. A job asks what its site has."""
KILLED_REST_S = 4.0
"""Of the site's KillWait, what comes after the driver where Slurm's SIGKILL is near."""
CRASH_OR_SIGNAL_S = 2.0
"""Steps get SIGTERM before the batch script does: so long a lost step is not yet called a crash."""
FIRST_ANSWER_S = 3.0
"""For Slurm to say why it signals; after that trials are told to save, and it is asked on in the background."""
CANCELLED_SAVE_S = 3.0
"""For the driver of a cancelled job."""
CANCELLED_NODES_S = 3.0
"""For its nodes: Slurm kills what is left anyway, and the job's record is still to be written."""

RUN_SAVE_S = 30.0
"""How long the workers of a full run may take to write their checkpoint after Ctrl-C."""
TRIAL_END_S = 15.0
"""How long a trial that was stopped early may take to end its workers."""
SAME_SIGNAL_S = 3.0
"""torchrun passes a Ctrl-C on that its workers have already got from the terminal."""

RAY_ENDS_DRIVER_S = 60
"""Ray's own: a driver whose head has not answered for so long is ended without a chance to save."""
HEAD_GONE_S = 40.0
"""After this time without an answer the cluster's head counts as gone."""
UNANSWERED_LINE_S = 15.0
"""So long without an answer a line says so."""
RAY_ANSWER_S = 5.0
"""For one question to Ray's head."""
LAST_SAVE_S = 12.0
"""Time for the driver to save after the cluster is gone. Then its process ends: Ray's calls would wait for ever."""

JOINED_GRACE_S = 600.0
"""The same for a joined cluster: another allocation may attach nodes, and a lost node may return."""
WAIT_IN_JOB_S = 60.0
"""The same in a Slurm job. It pays for the nodes that are left, so it then goes back into the queue."""
OWN_GRACE_S = 30.0
"""A search on its own Ray gives up if no trial fits for this time: no node ever joins such a Ray."""
HOPELESS_LINE_S = 5.0
"""After this time a wait that no node can satisfy gets its first line. Until then nodes may still be joining."""

STALE_S = 60.0
"""A lease whose holder cannot be asked, and says nothing for so long, may be taken over."""
RENEW_S = 10.0
"""Between two signs of life of a lease's holder."""
CLAIM_S = 10.0
"""Within it one who has claimed a dead one's lease has written its own, or has died between."""
HUNG_S = 60.0
"""A node whose heartbeat has not been seen for so long is taken for hung."""
HEARTBEAT_S = 5.0
"""Between two heartbeats of a node."""
HUNG_DRAIN_S = 5.0
"""For Ray to hear that nothing is to be placed on a node that hangs: meanwhile nothing else is noticed."""

SILENT_S = 300.0
"""How long a job waits for a controller that does not answer; a cancelled one is killed before."""
COMMAND_S = 30.0
"""For one command of Slurm."""
