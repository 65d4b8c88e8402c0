-- Reads the state of the lock at hand. in: key
answer, messages = nil, nil
state = try('HGET', key, 'state')
