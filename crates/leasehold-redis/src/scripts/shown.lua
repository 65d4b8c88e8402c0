-- in: word, seen, and place, the waiter's; the state is as it was written
if word and not answer then answer = {word, floor(now), state or '', seen or '', place and floor(place)} end
