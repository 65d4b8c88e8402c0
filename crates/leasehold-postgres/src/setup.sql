-- The tables and functions of leasehold's locks. Applying it again changes nothing.
CREATE SCHEMA IF NOT EXISTS leasehold;

-- Tables of a later version stay as they are.
DO $$ BEGIN
    IF to_regclass('leasehold.meta') IS NOT NULL THEN
        IF EXISTS (SELECT FROM leasehold.meta m WHERE m.format > 1) THEN
            RAISE EXCEPTION 'the tables have a later format' USING ERRCODE = 'LH002';
        END IF;
    END IF;
END $$;

-- One row a lock. While entry is NULL, the columns say all: the lock is free, or has one exclusive holder and no
-- queue. Otherwise entry has the whole lock, and the columns are for people.
CREATE TABLE IF NOT EXISTS leasehold.lock (
    name text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 512),
    version bigint NOT NULL,          -- random, new with every write
    used_until timestamptz NOT NULL,  -- the end of the lease, the queue or the cooldown; else the last use
    last_fence bigint NOT NULL CHECK (last_fence >= 0),
    holders int NOT NULL,
    waiters int NOT NULL,
    owner text,                       -- of the holder whose lease began first
    metadata text,
    granted_at timestamptz,
    renewed_at timestamptz,
    fences int,                       -- how many the one exclusive holder has, up to last_fence
    holds int,
    gone bigint,                      -- the last fence of a lease that its holder's transaction has released
    token uuid,                       -- secret, as are released, ended and entry
    released uuid,
    ended bytea,
    entry bytea
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500,
    toast.autovacuum_vacuum_threshold = 500
);

CREATE TABLE IF NOT EXISTS leasehold.meta (
    id int PRIMARY KEY CHECK (id = 1),
    format int NOT NULL,
    epoch int NOT NULL,
    timeline text,
    forgotten bigint NOT NULL,        -- no deleted row had a higher fence
    longest_ttl bigint NOT NULL,      -- of all leases ever asked for, in microseconds
    lossy bool NOT NULL DEFAULT false, -- whether a client ever had commits that don't wait for the disk
    looked_at text NOT NULL DEFAULT '' -- the name behind which idle locks are looked for next
);
INSERT INTO leasehold.meta VALUES (1, 1, 0, NULL, 0, 30000000) ON CONFLICT DO NOTHING;

-- Empty after whatever may have lost writes: a crash, a promoted standby. No client grants a lease without its row.
CREATE UNLOGGED TABLE IF NOT EXISTS leasehold.alive (
    id int PRIMARY KEY CHECK (id = 1),
    epoch int NOT NULL,
    since timestamptz NOT NULL,
    grants_from timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS leasehold.log (
    name text COLLATE "C",
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (name, id)
);

-- Decides for the transaction how durable its commit is, whatever the user's own setting says. 0: on disk, 1: not yet,
-- 2: on a standby too.
CREATE OR REPLACE FUNCTION leasehold.commit_1(p_durability int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE was text := current_setting('synchronous_commit');
BEGIN
    IF p_durability = 2 AND (current_setting('synchronous_standby_names') = '' OR was IN ('off', 'local')) THEN
        RAISE EXCEPTION 'commits wait for no standby' USING ERRCODE = 'LH003';
    ELSIF p_durability = 1 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF was = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
END $$;

-- Reads a lock, and what its next step depends on. It is STABLE, so all calls in a statement see the same moment.
CREATE OR REPLACE FUNCTION leasehold.read_1(
    p_name text, OUT now timestamptz, OUT epoch int, OUT grants_from timestamptz, OUT forgotten bigint,
    OUT longest_ttl bigint, OUT version bigint, OUT used_until timestamptz, OUT last_fence bigint, OUT owner text,
    OUT metadata text, OUT granted_at timestamptz, OUT renewed_at timestamptz, OUT fences int, OUT holds int,
    OUT gone bigint, OUT token uuid, OUT released uuid, OUT ended bytea, OUT entry bytea
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT m.forgotten, m.longest_ttl, a.epoch, a.grants_from, l.version, l.used_until, l.last_fence, l.owner,
        l.metadata, l.granted_at, l.renewed_at, l.fences, l.holds, l.gone, l.token, l.released, l.ended, l.entry
    INTO forgotten, longest_ttl, epoch, grants_from, version, used_until, last_fence, owner,
        metadata, granted_at, renewed_at, fences, holds, gone, token, released, ended, entry
    FROM leasehold.meta m LEFT JOIN leasehold.alive a ON a.id = 1 LEFT JOIN leasehold.lock l ON l.name = p_name
    WHERE m.id = 1;
    now := clock_timestamp();
END $$;

-- The format of the tables. A standby answers too.
CREATE OR REPLACE FUNCTION leasehold.format_1() RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT m.format FROM leasehold.meta m WHERE m.id = 1);
END $$;

-- The present epoch. A standby has no table alive.
CREATE OR REPLACE FUNCTION leasehold.epoch_1(OUT epoch int, OUT since timestamptz, OUT grants_from timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT m.epoch, a.since, a.grants_from INTO epoch, since, grants_from
    FROM leasehold.meta m LEFT JOIN leasehold.alive a ON a.id = 1 WHERE m.id = 1;
END $$;

-- The names of locks in use that begin so. No upper bound by a next prefix: any may be the last.
CREATE OR REPLACE FUNCTION leasehold.names_1(p_prefix text) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.name FROM leasehold.lock l WHERE l.name >= p_prefix AND starts_with(l.name, p_prefix)
        AND l.used_until > clock_timestamp() ORDER BY l.name;
END $$;

-- Locks a lock's row for a step of several statements.
CREATE OR REPLACE FUNCTION leasehold.lock_1(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM leasehold.lock l WHERE l.name = p_name FOR NO KEY UPDATE;
END $$;

-- Sends notifications if the lock was written with this version.
CREATE OR REPLACE FUNCTION leasehold.tell_1(p_name text, p_version bigint, p_channels text[], p_texts text[])
RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT pg_notify(n.c, n.t)::text FROM leasehold.lock l, unnest(p_channels, p_texts) AS n(c, t)
        WHERE l.name = p_name AND l.version = p_version;
END $$;

-- Notes that a client's commits do not wait for the disk.
CREATE OR REPLACE FUNCTION leasehold.note_loss_1() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM leasehold.commit_1(0);
    UPDATE leasehold.meta m SET lossy = true WHERE m.id = 1 AND NOT m.lossy;
END $$;

-- Logs an event, given as names and values in turn.
CREATE OR REPLACE FUNCTION leasehold.log_1(p_name text, p_fields text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO leasehold.log (name, at, body) VALUES (p_name, clock_timestamp(), jsonb_object(p_fields));
END $$;

-- Keeps so many events of a lock.
CREATE OR REPLACE FUNCTION leasehold.log_keep_1(p_name text, p_count bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM leasehold.log l WHERE l.name = p_name AND l.id <= (SELECT o.id FROM leasehold.log o
        WHERE o.name = p_name ORDER BY o.id DESC OFFSET p_count LIMIT 1);
END $$;

-- The last events of a lock, the newest first.
CREATE OR REPLACE FUNCTION leasehold.log_last_1(p_name text, p_count bigint)
RETURNS TABLE (at timestamptz, fields text[]) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT l.at, ARRAY(SELECT unnest(ARRAY[e.key, e.value]) FROM jsonb_each_text(l.body) e)
        FROM leasehold.log l WHERE l.name = p_name ORDER BY l.id DESC LIMIT p_count;
END $$;

-- Writes locks if they are all as they were read. 1: written, 0: one has changed, or another client changes it now,
-- 2: too late, 3: a transaction that works under a lock keeps a grant out. It waits for no row: a connection serves many
-- locks.
CREATE OR REPLACE FUNCTION leasehold.write_1(
    p_epoch int, p_not_after timestamptz, p_longest bigint, p_names text[], p_olds bigint[], p_versions bigint[],
    p_grants bool[], p_used timestamptz[], p_fence bigint[], p_holders int[], p_waiters int[], p_owner text[],
    p_metadata text[], p_granted timestamptz[], p_renewed timestamptz[], p_fences int[], p_holds int[], p_token uuid[],
    p_released uuid[], p_ended bytea[], p_entry bytea[], p_durability int
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE outcome int;
BEGIN
    PERFORM leasehold.commit_1(p_durability);
    IF p_not_after < clock_timestamp() THEN RETURN 2; END IF;
    PERFORM FROM leasehold.alive a WHERE a.id = 1 AND a.epoch = p_epoch;
    IF NOT FOUND THEN RETURN 0; END IF;
    FOR i IN 1 .. cardinality(p_names) LOOP
        outcome := 0;
        IF p_olds[i] IS NULL THEN
            INSERT INTO leasehold.lock (name, version, used_until, last_fence, holders, waiters, owner, metadata,
                granted_at, renewed_at, fences, holds, token, released, ended, entry)
            VALUES (p_names[i], p_versions[i], p_used[i], p_fence[i], p_holders[i], p_waiters[i], p_owner[i],
                p_metadata[i], p_granted[i], p_renewed[i], p_fences[i], p_holds[i], p_token[i], p_released[i],
                p_ended[i], p_entry[i])
            ON CONFLICT DO NOTHING;
        -- A grant waits for transactions that hold the lock's row by FOR KEY SHARE; nothing else does.
        ELSIF p_grants[i] THEN
            PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.version = p_olds[i] FOR UPDATE SKIP LOCKED;
        ELSE
            PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.version = p_olds[i]
                FOR NO KEY UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            IF p_grants[i] THEN
                PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.version = p_olds[i]
                    FOR NO KEY UPDATE SKIP LOCKED;
                IF FOUND THEN outcome := 3; END IF;
            END IF;
            -- An exception would undo this too, but it would be an error in the server's log.
            DELETE FROM leasehold.lock l WHERE l.name = ANY (p_names[1 : i - 1]) AND l.version = ANY (p_versions);
            RETURN outcome;
        END IF;
    END LOOP;
    IF p_longest IS NOT NULL THEN
        UPDATE leasehold.meta m SET longest_ttl = p_longest WHERE m.id = 1 AND m.longest_ttl < p_longest;
    END IF;
    FOR i IN 1 .. cardinality(p_names) LOOP
        UPDATE leasehold.lock l SET version = p_versions[i], used_until = p_used[i], last_fence = p_fence[i],
            holders = p_holders[i], waiters = p_waiters[i], owner = p_owner[i], metadata = p_metadata[i],
            granted_at = p_granted[i], renewed_at = p_renewed[i], fences = p_fences[i], holds = p_holds[i],
            token = p_token[i], released = p_released[i], ended = p_ended[i], entry = p_entry[i], gone = NULL
        WHERE l.name = p_names[i] AND p_olds[i] IS NOT NULL;
        IF NOT FOUND AND p_olds[i] IS NOT NULL THEN
            RAISE EXCEPTION 'a trigger or a rule keeps the row of % as it is', p_names[i];
        END IF;
    END LOOP;
    RETURN 1;
END $$;

-- Takes locks without a queue that are free, or whose lease has expired. One row for each name: with the version that
-- was asked for if the lock was taken, else as read_1 has it. It waits for no row.
CREATE OR REPLACE FUNCTION leasehold.take_1(
    p_not_after timestamptz, p_names text[], p_versions bigint[], p_tokens uuid[], p_ttls bigint[], p_fences int[],
    p_holds int[], p_owner text[], p_metadata text[], p_durability int
) RETURNS TABLE (
    now timestamptz, epoch int, grants_from timestamptz, forgotten bigint, longest_ttl bigint, version bigint,
    used_until timestamptz, last_fence bigint, owner text, metadata text, granted_at timestamptz,
    renewed_at timestamptz, fences int, holds int, gone bigint, token uuid, released uuid, ended bytea, entry bytea
) LANGUAGE plpgsql AS $$
DECLARE this int; longest bigint;
BEGIN
    PERFORM leasehold.commit_1(p_durability);
    SELECT a.epoch, m.longest_ttl INTO this, longest FROM leasehold.alive a, leasehold.meta m
    WHERE a.id = 1 AND m.id = 1 AND a.grants_from <= clock_timestamp() AND p_not_after >= clock_timestamp();
    FOR i IN 1 .. cardinality(p_names) LOOP
        -- As in write_1, a grant waits for transactions that hold the lock's row.
        PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.entry IS NULL AND p_ttls[i] <= longest
            AND (l.token IS NULL AND l.granted_at IS NULL OR l.used_until <= clock_timestamp())
            AND l.last_fence < 1::bigint << 62
            FOR UPDATE SKIP LOCKED;
        now := clock_timestamp();
        IF FOUND THEN
            UPDATE leasehold.lock l SET version = p_versions[i],
                used_until = now + p_ttls[i] * interval '1 microsecond', last_fence = (greatest((l.last_fence >> 12) + 1,
                    ((extract(epoch FROM now) - 1577836800) * 1000000)::bigint) + p_fences[i] - 1) << 12 | this,
                holders = 1, owner = p_owner[i], metadata = p_metadata[i], granted_at = now, renewed_at = now,
                fences = p_fences[i], holds = p_holds[i], token = p_tokens[i], released = NULL
            WHERE l.name = p_names[i] RETURNING l.last_fence INTO last_fence;
        ELSE
            INSERT INTO leasehold.lock AS l (name, version, used_until, last_fence, holders, waiters, owner, metadata,
                granted_at, renewed_at, fences, holds, token)
            SELECT p_names[i], p_versions[i], now + p_ttls[i] * interval '1 microsecond',
                (greatest((m.forgotten >> 12) + 1, ((extract(epoch FROM now) - 1577836800) * 1000000)::bigint)
                    + p_fences[i] - 1) << 12 | this,
                1, 0, p_owner[i], p_metadata[i], now, now, p_fences[i], p_holds[i], p_tokens[i]
            FROM leasehold.meta m WHERE m.id = 1 AND p_ttls[i] <= longest
                AND NOT EXISTS (SELECT FROM leasehold.lock o WHERE o.name = p_names[i])
            ON CONFLICT DO NOTHING RETURNING l.last_fence INTO last_fence;
        END IF;
        IF FOUND THEN
            version := p_versions[i];
            RETURN NEXT;
        ELSE
            RETURN QUERY SELECT * FROM leasehold.read_1(p_names[i]);
        END IF;
    END LOOP;
END $$;

-- Releases leases of locks without a queue. It answers as take_1 does, and waits for no row.
CREATE OR REPLACE FUNCTION leasehold.release_1(
    p_names text[], p_versions bigint[], p_tokens uuid[], p_in_time bool[], p_durability int
) RETURNS TABLE (
    now timestamptz, epoch int, grants_from timestamptz, forgotten bigint, longest_ttl bigint, version bigint,
    used_until timestamptz, last_fence bigint, owner text, metadata text, granted_at timestamptz,
    renewed_at timestamptz, fences int, holds int, gone bigint, token uuid, released uuid, ended bytea, entry bytea
) LANGUAGE plpgsql AS $$
BEGIN
    -- A release makes no promise that a standby has to know.
    PERFORM leasehold.commit_1(p_durability % 2);
    FOR i IN 1 .. cardinality(p_names) LOOP
        PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.entry IS NULL AND l.token = p_tokens[i]
            AND l.renewed_at <= clock_timestamp() AND (p_in_time[i] OR l.used_until > clock_timestamp())
            FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            version := p_versions[i];
            now := clock_timestamp();
            UPDATE leasehold.lock l SET version = p_versions[i], used_until = now, holders = 0, owner = NULL,
                metadata = NULL, granted_at = NULL, renewed_at = NULL, fences = NULL, holds = NULL, token = NULL,
                released = p_tokens[i]
            WHERE l.name = p_names[i];
        END IF;
        IF FOUND THEN
            RETURN NEXT;
        ELSE
            RETURN QUERY SELECT * FROM leasehold.read_1(p_names[i]);
        END IF;
    END LOOP;
END $$;

-- Renews leases of locks without a queue, and returns which: the others need a step of the table. It waits for no row.
CREATE OR REPLACE FUNCTION leasehold.renew_1(
    p_not_after timestamptz, p_names text[], p_versions bigint[], p_tokens uuid[], p_ttls bigint[], p_fences bigint[],
    p_shorten bool[], p_durability int, OUT now timestamptz, OUT renewed int[]
) LANGUAGE plpgsql AS $$
DECLARE longest bigint; until timestamptz;
BEGIN
    PERFORM leasehold.commit_1(p_durability);
    renewed := '{}';
    SELECT m.longest_ttl INTO longest FROM leasehold.meta m WHERE m.id = 1 AND p_not_after >= clock_timestamp();
    FOR i IN 1 .. cardinality(p_names) LOOP
        PERFORM FROM leasehold.lock l WHERE l.name = p_names[i] AND l.entry IS NULL AND l.token = p_tokens[i]
            AND l.last_fence >= p_fences[i] AND l.renewed_at <= clock_timestamp()
            AND l.used_until > clock_timestamp() AND p_ttls[i] <= longest FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        now := clock_timestamp();
        until := now + p_ttls[i] * interval '1 microsecond';
        UPDATE leasehold.lock l SET version = p_versions[i], renewed_at = now,
            used_until = CASE WHEN p_shorten[i] THEN until ELSE greatest(l.used_until, until) END
        WHERE l.name = p_names[i];
        -- A trigger may have kept the row as it was.
        CONTINUE WHEN NOT FOUND;
        renewed := renewed || i;
    END LOOP;
    now := clock_timestamp();
END $$;

-- Puts the row of alive back. If writes may be lost, no lease is granted until the longest one has ended, unless the
-- client wants grants at once.
CREATE OR REPLACE FUNCTION leasehold.adopt_1(p_grants bool) RETURNS void LANGUAGE plpgsql AS $$
DECLARE was leasehold.meta; line text; waits bool;
BEGIN
    PERFORM leasehold.commit_1(0);
    SELECT * INTO was FROM leasehold.meta m WHERE m.id = 1 FOR UPDATE;
    PERFORM FROM leasehold.alive a WHERE a.id = 1;
    IF FOUND THEN RETURN; END IF;
    BEGIN
        line := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    EXCEPTION WHEN others THEN
        line := NULL;
    END;
    waits := was.epoch > 0 AND NOT p_grants AND (was.lossy OR line IS NULL OR line IS DISTINCT FROM was.timeline);
    UPDATE leasehold.meta m SET epoch = was.epoch % 4095 + 1, timeline = line WHERE m.id = 1;
    INSERT INTO leasehold.alive VALUES (1, was.epoch % 4095 + 1, clock_timestamp(), clock_timestamp() +
        CASE WHEN waits THEN was.longest_ttl * interval '1 microsecond' ELSE interval '0' END);
END $$;

-- Looks at p_count locks, and deletes those that were idle for this many seconds. The next call, by any client, goes on
-- behind them.
CREATE OR REPLACE FUNCTION leasehold.forget_1(p_count bigint, p_retention float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE behind text; up_to text; top bigint;
BEGIN
    -- No request waits behind it for the disk or a standby. A deletion that is lost is done again.
    PERFORM leasehold.commit_1(1);
    SELECT m.looked_at INTO behind FROM leasehold.meta m WHERE m.id = 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN; END IF;
    SELECT c.name INTO up_to FROM leasehold.lock c WHERE c.name > behind ORDER BY c.name OFFSET p_count - 1 LIMIT 1;
    WITH idle AS (
        SELECT l.name FROM leasehold.lock l WHERE l.name > behind AND (up_to IS NULL OR l.name <= up_to)
            AND l.used_until < clock_timestamp() - p_retention * interval '1 second'
            AND l.last_fence >> 12 < (extract(epoch FROM clock_timestamp()) - 1577836800) * 1000000
        FOR UPDATE SKIP LOCKED
    ), gone AS (DELETE FROM leasehold.lock l USING idle WHERE l.name = idle.name RETURNING l.last_fence)
    SELECT max(g.last_fence) INTO top FROM gone g;
    UPDATE leasehold.meta m SET forgotten = greatest(m.forgotten, top), looked_at = coalesce(up_to, '') WHERE m.id = 1;
    DELETE FROM leasehold.log g WHERE g.name > behind AND (up_to IS NULL OR g.name <= up_to)
        AND g.at < clock_timestamp() - interval '7 days';
END $$;

-- The first statement of a transaction that works under a lock: keeps the next holder out until it ends. It fails if the
-- lease with this fence has ended, or another one was granted since.
CREATE OR REPLACE FUNCTION leasehold.hold(p_name text, p_fence bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM leasehold.lock l WHERE l.name = p_name
        AND p_fence BETWEEN l.last_fence - ((l.fences - 1)::bigint << 12) AND l.last_fence FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease on % with the fence % is not held', p_name, p_fence USING ERRCODE = 'LH001';
    END IF;
END $$;

-- Releases the lease with the transaction, or not at all. A lock with a queue keeps the fence in gone, and its next
-- step releases the lease before anything else.
CREATE OR REPLACE FUNCTION leasehold.release_with(p_name text, p_fence bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE leasehold.lock l SET version = (random() * 9e18)::bigint, fences = NULL,
        gone = CASE WHEN l.entry IS NULL THEN NULL ELSE l.last_fence END,
        holders = 0, owner = NULL, metadata = NULL, granted_at = NULL, renewed_at = NULL, holds = NULL,
        released = CASE WHEN l.entry IS NULL THEN l.token ELSE l.released END, token = NULL,
        used_until = CASE WHEN l.entry IS NULL THEN least(l.used_until, clock_timestamp()) ELSE l.used_until END
    WHERE l.name = p_name AND p_fence BETWEEN l.last_fence - ((l.fences - 1)::bigint << 12) AND l.last_fence;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease on % with the fence % is not held', p_name, p_fence USING ERRCODE = 'LH001';
    END IF;
END $$;
