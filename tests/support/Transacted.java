// JMS client with a transacted session: moves messages from one queue to another, with rollbacks in between.
import jakarta.jms.*;
import org.apache.qpid.jms.JmsConnectionFactory;

public class Transacted {
    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], from = arguments[1], to = arguments[2];
        int batch = Integer.parseInt(arguments[3]);
        try (Connection connection = new JmsConnectionFactory(url).createConnection()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(session.createQueue(from));
            MessageProducer producer = session.createProducer(session.createQueue(to));
            connection.start();
            int redelivered = 0, rollbacks = 0, failed = 0;
            boolean ended = false;
            for (int turn = 0; !ended; turn++) {
                try {
                    boolean last = false;
                    for (int held = 0; held < batch && !last; held++) {
                        TextMessage message = (TextMessage) consumer.receive();
                        if (message.getJMSRedelivered())
                            redelivered++;
                        producer.send(session.createTextMessage(message.getText()));
                        last = message.getText().equals("the end");
                    }
                    if (turn % 3 == 1) {
                        session.rollback();
                        rollbacks++;
                    } else {
                        System.out.println("commits");
                        session.commit();
                        ended = last;
                    }
                } catch (JMSException error) { // the gateway was killed: the transaction is rolled back, or in doubt
                    failed++;
                }
            }
            producer.send(session.createTextMessage("never committed"));
            System.out.println("ended " + redelivered + " " + rollbacks + " " + failed);
        }
    }
}
