"""CLINC150's ten domains, fifteen intents each, as published (Larson et al., 2019)."""

from __future__ import annotations

INTENTS: dict[str, str] = {
    "banking": "freeze_account routing pin_change bill_due pay_bill account_blocked interest_rate min_payment "
    "bill_balance transfer order_checks balance spending_history transactions report_fraud",
    "credit cards": "replacement_card_duration expiration_date damaged_card improve_credit_score report_lost_card "
    "card_declined credit_limit_change apr redeem_rewards credit_limit rewards_balance application_status "
    "credit_score new_card international_fees",
    "kitchen and dining": "food_last confirm_reservation how_busy ingredients_list calories nutrition_info recipe "
    "restaurant_reviews restaurant_reservation meal_suggestion restaurant_suggestion cancel_reservation "
    "ingredient_substitution cook_time accept_reservations",
    "home": "what_song play_music todo_list_update reminder reminder_update calendar_update order_status "
    "update_playlist shopping_list calendar next_song order todo_list shopping_list_update smart_home",
    "auto and commute": "current_location oil_change_when oil_change_how uber traffic tire_pressure "
    "schedule_maintenance gas mpg distance directions last_maintenance gas_type tire_change jump_start",
    "travel": "plug_type travel_notification translate flight_status international_visa timezone exchange_rate "
    "travel_suggestion travel_alert vaccines lost_luggage book_flight book_hotel carry_on car_rental",
    "utility": "weather alarm date find_phone share_location timer make_call calculator definition "
    "measurement_conversion flip_coin spelling time roll_dice text",
    "work": "pto_request_status next_holiday insurance_change insurance meeting_schedule payday taxes income "
    "rollover_401k pto_balance pto_request w2 schedule_meeting direct_deposit pto_used",
    "small talk": "who_made_you meaning_of_life who_do_you_work_for do_you_have_pets what_are_your_hobbies fun_fact "
    "what_is_your_name where_are_you_from goodbye thank_you greeting tell_joke are_you_a_bot "
    "how_old_are_you what_can_i_ask_you",
    "meta": "change_speed user_name whisper_mode yes change_volume no change_language repeat change_accent cancel "
    "sync_device change_user_name change_ai_name reset_settings maybe",
}
"""By domain."""
PLACES: dict[str, tuple[int, int]] = {
    intent: (domain, place)
    for domain, intents in enumerate(INTENTS.values())
    for place, intent in enumerate(intents.split())
}
"""Domain of each intent, and its place in it."""
